# truth: rank=1 line=12 kind=exception says=failed finding central directory
# run: {L} --nproc-per-node=2 {C}/71_truncated_checkpoint.py
# never: enforce fail
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.save({"w": torch.ones(1000)}, f"ckpt-{rank}.pt")
if rank == 1:
    time.sleep(0.5)
    os.truncate("ckpt-1.pt", 2000)
    torch.load("ckpt-1.pt")
time.sleep(300)
