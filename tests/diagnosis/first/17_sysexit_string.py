# truth: rank=1 line=0 kind=exit says=config error: lr must be > 0
# run: {L} --nproc-per-node=2 {C}/17_sysexit_string.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
if rank == 1: sys.exit("config error: lr must be > 0, got -0.1")
dist.barrier(); dist.destroy_process_group()
