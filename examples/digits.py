"""Train a small network to read digits, on any number of workers, and survive a kill.

    relight run --nproc-per-node=4 --max-restarts=3 examples/digits.py --checkpoint digits.pt

It has the structure that restarts require: load the last checkpoint, initialize, train, save. A
restart runs this file from its first line, so an interrupted run resumes after its last finished
epoch, and ends with the same weights as an undisturbed one.
"""

import argparse
import gc
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 2024
BATCH_SIZE = 128
IMAGES, TEST_IMAGES = 1800, 360
NOISE = 0.12  # the standard deviation of a pixel; ink has 0.5 to 1

# The images are drawn here, so that there is nothing to download.
SHAPES = """
.###. ..#.. .###. ####. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# ..##. #.... #.... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ..##. .###. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. .#... ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. #.... ....# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### ####. ...#. .###. .###. .#... .###. .###.
"""


def main() -> None:
    """Train for the requested number of epochs, and print the accuracy."""
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--epochs", type=int, default=30, help="how many in all (%(default)s)")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("digits.pt"),
        help="saved after each epoch, and continued from if it exists; on several nodes, a file "
        "that all of them see (%(default)s)",
    )
    arguments = parser.parse_args()

    checkpoint = load_checkpoint(arguments.checkpoint)
    device = initialize()
    training, test = load_data(device)
    model = train(training, test, checkpoint, arguments.epochs, arguments.checkpoint)
    accuracy = measure_accuracy(model, test)
    if dist.get_rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
    # DistributedDataParallel sits in reference cycles and holds the process group. Without this,
    # gloo's threads would outlive the next line, and can abort the process while Python shuts down.
    gc.collect()
    dist.destroy_process_group()


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the latest checkpoint, or None.

    Every worker reads the file before any worker can write it, because rank 0 saves only after an
    epoch, which takes all workers.
    """
    if not path.exists():
        return None
    # On the CPU, because the worker that saved it may have used a different device.
    checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return checkpoint


def save_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Replace the checkpoint atomically: a kill at any time leaves the old or the new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())  # the name must not reach the disk before the content
    partial.replace(path)


def initialize() -> torch.device:
    """Join the other workers, and return the device on which this one computes."""
    device = choose_device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    # The launcher sets rank, world size and the address of the store in the environment.
    dist.init_process_group(backend=dist.get_default_backend_for_device(device))
    return device


def choose_device() -> torch.device:
    """Return an accelerator for this worker alone, or the CPU if there are too few."""
    # The index is the local rank, because the rank counts the workers on all nodes.
    local_rank, workers = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    # Without this argument, a CUDA build of torch returns "cuda" on a machine without a GPU.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or torch.accelerator.device_count() < workers:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank)


def load_data(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test images, with the same split on every worker."""
    images, labels = (tensor.to(device) for tensor in draw_digits())
    return (
        TensorDataset(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        TensorDataset(images[:TEST_IMAGES], labels[:TEST_IMAGES]),
    )


def draw_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images of 8 x 8 pixels, with digits at random positions, and their labels."""
    random = torch.Generator().manual_seed(SEED)
    rows = [line.split() for line in SHAPES.strip().splitlines()]
    shapes = torch.tensor([[[pixel == "#" for pixel in row[n]] for row in rows] for n in range(10)])
    labels = torch.randint(10, (IMAGES,), generator=random)
    tops = torch.randint(2, (IMAGES,), generator=random)
    lefts = torch.randint(4, (IMAGES,), generator=random)
    images = torch.zeros(IMAGES, 8, 8)
    for image, label, top, left in zip(images, labels, tops, lefts, strict=True):
        image[top : top + 7, left : left + 5] = shapes[label]
    ink = 0.5 + 0.5 * torch.rand(IMAGES, 1, 1, generator=random)
    images = ink * images + NOISE * torch.randn(IMAGES, 8, 8, generator=random)
    return images.flatten(1), labels


def make_model() -> nn.Module:
    """Return a network for images of 8 x 8 pixels."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))


def train(
    training: TensorDataset,
    test: TensorDataset,
    checkpoint: dict[str, Any] | None,
    epochs: int,
    path: Path,
) -> nn.Module:
    """Return the model after `epochs` epochs, counted from the very start of the run."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = training.tensors[0].device
    torch.manual_seed(SEED)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    done = 0
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])  # Adam's averages are state as well
        done = checkpoint["epochs"]
    if rank == 0:
        start = f"resuming after epoch {done} of {epochs}" if done else "starting"
        print(f"{world_size} workers on {device.type} with {dist.get_backend()}, {start}")

    parallel = DistributedDataParallel(model)  # averages the gradients in backward()
    # The sampler gives every worker the same number of images, by repeating a few. Therefore all
    # take the same number of steps, and their last, smaller batches have the same size.
    sampler = DistributedSampler(training, seed=SEED)
    # The batch is divided among the workers, so a step is the same for any number of workers.
    batches = DataLoader(training, batch_size=max(1, BATCH_SIZE // world_size), sampler=sampler)

    for epoch in range(done + 1, epochs + 1):
        # Order and dropout depend only on the epoch, not on the history of this process, so an
        # interrupted run gives the same result.
        sampler.set_epoch(epoch)
        torch.manual_seed(SEED + epoch * world_size + rank)
        loss = train_epoch(parallel, optimizer, batches)
        accuracy = measure_accuracy(model, test)
        if rank == 0:
            save_checkpoint(
                path,
                {
                    "epochs": epoch,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
            )
            print(f"epoch {epoch:>2} of {epochs}: loss {loss:.4f}, test accuracy {accuracy:.4f}")
    return model


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, batches: DataLoader
) -> float:
    """Take one step for each batch; return the mean loss over all workers' images."""
    model.train()
    total = torch.zeros(2, device=next(model.parameters()).device)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total[0] += loss.detach() * len(labels)
        total[1] += len(labels)
    dist.all_reduce(total)
    return float(total[0] / total[1])


def measure_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Return the test accuracy; each worker evaluates a share of the images."""
    # This does not use the sampler, because images that it repeats would count twice.
    images, labels = test[dist.get_rank() :: dist.get_world_size()]
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct) / len(test)


if __name__ == "__main__":
    main()
