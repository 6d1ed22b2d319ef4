# truth: rank=1 line=12 kind=exception says=one of the variables needed for gradient computation has been modified by an inplace operation
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/136_autograd_inplace.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(3, requires_grad=True)
y = x.exp()
if rank == 1:
    y += 1  # y is needed for the gradient
y.sum().backward()
dist.all_reduce(x.grad)
