# truth: rank=1 line=9 kind=exception says=Größe ungültig
# run: {L} --nproc-per-node=2 {C}/15_unicode_huge.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
if rank == 1:
    raise ValueError("Größe ungültig 形状不符 🚀 \x1b[31mrot\x1b[0m \u202eLTR\u202c: " + "\n".join(f"tensor[{i}] = {i * 0.5}" for i in range(15000)))
dist.barrier(); dist.destroy_process_group()
