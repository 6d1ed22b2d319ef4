"""Train while nodes join, leave, fail and are preempted.

    relight run --nproc-per-node=2 --max-restarts=3 --restart-policy=smart examples/elastic.py

Each start of this file may have a different number of workers. It resumes from the last checkpoint
and ends with the same weights, up to rounding, as an undisturbed run.
"""

import argparse
import gc
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relight.worker import progress, should_checkpoint

SEED = 7
BATCH_SIZE = 64  # across all workers
SAVE_EVERY = 50


def main() -> None:
    """Train up to the requested step; save and exit if the launcher requests it."""
    parser = argparse.ArgumentParser(description="Fit a line on any number of workers.")
    parser.add_argument("--steps", type=int, default=500, help="how many in all (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, default=Path("elastic.pt"))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = load(arguments.checkpoint, model, optimizer)

    dist.init_process_group()  # gloo on CPUs, NCCL on GPUs
    rank, workers = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"{workers} workers, from step {first}", flush=True)
    parallel = DistributedDataParallel(model)

    for step in range(first, arguments.steps):
        train_step(step, rank, workers, parallel, optimizer)
        time.sleep(arguments.pause)
        progress(step)  # for --restart-policy=smart, --hang-timeout and relight status
        leaves = should_checkpoint()  # True in all ranks of all nodes at the same step
        if rank == 0 and (leaves or step % SAVE_EVERY == SAVE_EVERY - 1):
            save(arguments.checkpoint, step + 1, model, optimizer)
        if leaves:
            finish(f"leaves after step {step}" if rank == 0 else "")
    error = (model.weight.detach() - 1).abs().max().item()
    finish(f"done: the largest error of a weight is {error:.4f}" if rank == 0 else "")


def train_step(
    step: int,
    rank: int,
    workers: int,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Take one step. Its data depends only on the step, not on the number of workers."""
    random = torch.Generator().manual_seed(SEED + step)
    inputs = torch.randn(BATCH_SIZE, 8, generator=random)
    targets = inputs.sum(dim=1, keepdim=True)
    mine = slice(rank, None, workers)
    optimizer.zero_grad()
    loss = (model(inputs[mine]) - targets[mine]).square().sum() / BATCH_SIZE
    (loss * workers).backward()  # DistributedDataParallel divides the sum by the number of workers
    optimizer.step()


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last checkpoint, if it exists; return the first step."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint atomically: a kill at any time leaves the old or the new one."""
    partial = path.with_name(path.name + ".partial")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def finish(text: str) -> None:
    """Leave the group, and exit with code 0."""
    if text:
        print(text, flush=True)
    gc.collect()  # examples/README.md, "Process shutdown"
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    main()
