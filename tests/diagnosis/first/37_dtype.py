# truth: rank=none line=8 kind=mismatch says=different sizes or types
# run: {L} --nproc-per-node=3 {C}/37_dtype.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
loss = torch.ones(1000, dtype=torch.float64 if rank == 1 else torch.float32); dist.all_reduce(loss)
dist.barrier(); dist.destroy_process_group()
# also: all_reduce
