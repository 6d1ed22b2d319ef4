"""How often the shards of surviving ranks fit together: `python -m tests.shard_plays --kills 100`.

The job uses FSDP2 on 2 x 2 ranks. Repeatedly, one rank is killed at a random time. Steps only
communicate, unless `--compute` sets the number of seconds that each step waits in between.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = "torch,torch.distributed.fsdp,torch.distributed.tensor,torch._dynamo"
SCRIPT = r"""
import os, random, signal, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from relight.worker import StateLostError, progress, recoverable

kills, compute, barrier, seed = (float(each) for each in sys.argv[1:])
done = 0

@recoverable
def train(generation):
    global done
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        done = generation.share(model, optimizer, step=done)
    except StateLostError as error:
        print(f"lost in rank {generation.rank}: {error}", flush=True)
        done = 1000 * generation.restart  # later than all steps before
        generation.restored()
    draw = random.Random(f"{seed} {generation.restart}")
    victim, delay = draw.randrange(4), draw.uniform(0.1, 0.5)
    first = done + 3
    while generation.restart < kills or done < first:
        time.sleep(compute)
        model(torch.randn(8, 128)).square().mean().backward()
        if barrier:
            dist.barrier()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        progress(done)
        if done == first and generation.rank == victim and generation.restart < kills:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    dist.barrier()

train()
dist.destroy_process_group()
"""


def main() -> None:
    """Run the job, and print how many recoveries were possible."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--compute", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--barrier", action="store_true", help="before optimizer.step()")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(SCRIPT)
        result = subprocess.run(
            [sys.executable, "-m", "relight", "run", "--nproc-per-node=4", f"--preload={MODULES}",
             f"--max-restarts={arguments.kills}", script, str(arguments.kills),
             str(arguments.compute), str(int(arguments.barrier)), str(arguments.seed)],
            capture_output=True, text=True, check=False, cwd=place,
        )  # fmt: skip
    stayed = len(re.findall(r"ranks kept running", result.stderr))
    lost = re.findall(r"lost in rank 0: (.*)", result.stdout)
    print(
        f"{arguments.kills} kills: 3 ranks kept running {stayed} times; "
        f"state lost {len(lost)} times"
    )
    print(*lost, sep="\n")
    if result.returncode or stayed != arguments.kills:
        sys.exit(result.stderr[-4000:])


if __name__ == "__main__":
    main()
