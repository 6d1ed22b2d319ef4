"""One training step on each of N workers: the "Hello, World" of DistributedDataParallel.

    relight run --nnodes=1 --nproc-per-node=8 examples/hello_ddp.py

Each worker prints the rendezvous address, the backend, and its rank. Each uses its own GPU
if there are enough, and otherwise the CPU.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def choose_device() -> torch.device:
    """Return an accelerator for this worker alone, or the CPU if there are too few."""
    # Index by local rank. The global rank counts the workers on all nodes: on the second of two
    # nodes with 8 GPUs each, it starts at 8, but the last GPU there is 7.
    local_rank, workers = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    # Without this argument, a CUDA build of torch returns "cuda" on a machine without a GPU.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or torch.accelerator.device_count() < workers:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank)


def train_step(device: torch.device) -> None:
    """Take one step: the gradients are averaged over all workers in backward()."""
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.001)

    inputs, labels = torch.randn(20, 10, device=device), torch.randn(20, 5, device=device)
    optimizer.zero_grad()
    nn.functional.mse_loss(parallel(inputs), labels).backward()
    optimizer.step()


def main() -> None:
    """Join the other workers, take one step together, and exit."""
    meeting = {key: os.environ[key] for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    print(f"[{os.getpid()}] Initializing process group with: {meeting}")
    device = choose_device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    # This call reads the four variables itself.
    dist.init_process_group(backend=dist.get_default_backend_for_device(device))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"[{os.getpid()}] world_size = {world_size}, rank = {rank}, backend={dist.get_backend()}")

    train_step(device)

    print(f"[{os.getpid()}] rank = {rank}, world_size = {world_size}")
    # DistributedDataParallel sits in reference cycles and holds the process group. Without this,
    # gloo's threads would outlive the next line, and can abort the process while Python shuts down.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
