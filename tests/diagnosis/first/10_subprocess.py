# truth: rank=1 line=9 kind=exception says=CalledProcessError
# run: {L} --nproc-per-node=2 {C}/10_subprocess.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import subprocess
dist.init_process_group("gloo")
if rank == 1: subprocess.run(["bash", "-c", "echo fatal error: Unable to locate credentials >&2; exit 3"], check=True)
dist.barrier(); dist.destroy_process_group()
# also: Unable to locate credentials
