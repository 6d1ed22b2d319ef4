"""Train with FSDP2 while ranks fail: each shard has replicas, which send it to the new rank.

    relight run --nproc-per-node=4 --max-restarts=3 examples/survivors_sharded.py

Kill a rank with `kill -9`: only that rank is restarted. If all ranks with the same shard fail
together, no rank has that shard, and all ranks load the checkpoint.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from relight.worker import StateLostError, progress, recoverable
from relight.worker.replicas import Generation

SEED = 7
SHARDS = 2
BATCH_SIZE = 64  # per rank
SAVE_EVERY = 50

done = 0  # steps that this rank has taken; outside of the function, so that it survives


def build(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model that is sharded on a mesh, and its optimizer."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Save a checkpoint together with the other ranks."""
    weights, averages = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": averages}, checkpoint_id=folder / str(step))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last complete checkpoint together with the other ranks; return its step, or 0."""
    step = max((int(each.parent.name) for each in folder.glob("*/.metadata")), default=0)
    if step:
        weights, averages = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": averages}
        dcp.load(state, checkpoint_id=folder / str(step))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=averages)
    return step


@recoverable
def train(generation: Generation, folder: Path, steps: int, pause: float) -> None:
    """Train up to a step; called again, in the same process, when another rank has failed."""
    global done
    dist.init_process_group("gloo")  # a new group: the environment has its store, rank and size
    shape = (generation.world_size // SHARDS, SHARDS)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model, optimizer = build(mesh)  # new, because a sharded model holds its mesh's groups
    try:
        done = generation.share(model, optimizer, step=done)
    except StateLostError as error:  # raised on all ranks
        print(error, flush=True)
        done = 0
    if not done:
        done = load(folder, model, optimizer)
        generation.restored()
    if generation.rank == 0:
        print(f"{generation.world_size} ranks, from step {done}", flush=True)
    while done < steps:
        # Randomness depends only on the step and the rank, so an interrupted step repeats exactly.
        random = torch.Generator().manual_seed(SEED + 1000 * done + generation.rank)
        inputs = torch.randn(BATCH_SIZE, 8, generator=random)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        done += 1  # immediately, without a collective in between
        progress(done)
        if done % SAVE_EVERY == 0:
            save(folder, model, optimizer, done)
            if generation.rank == 0:
                print(f"step {done}: loss {loss.item():.4f}", flush=True)
        time.sleep(pause)
    dist.barrier()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description="Fit a sum on shards of which some may fail.")
    parser.add_argument("--steps", type=int, default=500, help="how many in all (%(default)s)")
    parser.add_argument("--checkpoints", type=Path, default=Path("survivors_sharded"))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    arguments = parser.parse_args()
    train(arguments.checkpoints, arguments.steps, arguments.pause)
    print(f"rank {os.environ.get('RANK', '0')} is done, pid {os.getpid()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
