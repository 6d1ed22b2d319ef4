"""Train while ranks fail: the others keep their processes, their models, and their ranks.

    relight run --nproc-per-node=4 --max-restarts=3 examples/survivors.py

Kill a rank with `kill -9`: only that rank is restarted, and it receives the state of the others.
The checkpoint is for failures that this can't handle, such as the loss of all ranks.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relight.worker import progress, recoverable
from relight.worker.replicas import Generation

SEED = 7
BATCH_SIZE = 64  # per rank
SAVE_EVERY = 50


class Training:
    """The state that survives the failure of another rank."""

    def __init__(self, checkpoint: Path) -> None:
        torch.manual_seed(SEED)
        self.model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.done = 0  # steps that this rank has taken
        self.checkpoint = checkpoint
        if checkpoint.exists():
            saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.done = int(saved["done"])

    def save(self) -> None:
        """Replace the checkpoint atomically: a kill at any time leaves the old or the new one."""
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "done": self.done,
        }  # fmt: skip
        torch.save(state, partial)
        partial.replace(self.checkpoint)


@recoverable
def train(generation: Generation, training: Training, steps: int, pause: float) -> None:
    """Train up to a step; called again, in the same process, when another rank has failed."""
    dist.init_process_group("gloo")  # a new group: the environment has its store, rank and size
    model, optimizer = training.model, training.optimizer
    training.done = generation.share(model, optimizer, step=training.done)
    parallel = DistributedDataParallel(model)  # after share(), because it copies rank 0's weights
    if generation.rank == 0:
        print(f"{generation.world_size} ranks, from step {training.done}", flush=True)
    while training.done < steps:
        # Randomness depends only on the step and the rank, so an interrupted step repeats exactly.
        random = torch.Generator().manual_seed(SEED + 1000 * training.done + generation.rank)
        inputs = torch.randn(BATCH_SIZE, 8, generator=random)
        optimizer.zero_grad()
        loss = (parallel(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        training.done += 1  # immediately, without a collective in between
        progress(training.done)
        if generation.rank == 0 and training.done % SAVE_EVERY == 0:
            training.save()
            print(f"step {training.done}: loss {loss.item():.4f}", flush=True)
        time.sleep(pause)
    dist.barrier()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description="Fit a sum on ranks of which some may fail.")
    parser.add_argument("--steps", type=int, default=500, help="how many in all (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("survivors.pt"))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    arguments = parser.parse_args()
    train(Training(arguments.checkpoint), arguments.steps, arguments.pause)
    print(f"rank {os.environ.get('RANK', '0')} is done, pid {os.getpid()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
