# truth: rank=none line=13 kind=mismatch says=barrier
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/16_barrier_only_on_rank_0.py
# also: all_reduce
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(8))
    if rank == 0 and step == 1:
        torch.save({"step": step}, "ckpt.pt")
        dist.barrier()
dist.destroy_process_group()
