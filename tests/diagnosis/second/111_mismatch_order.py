# truth: rank=1 line=12 kind=mismatch says=broadcast
# also: all_reduce
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/111_mismatch_order.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
loss, lr = torch.ones(3), torch.zeros(1)
dist.barrier()
if rank == 1:  # an old branch
    dist.broadcast(lr, src=0)
    dist.all_reduce(loss)
else:
    dist.all_reduce(loss)
    dist.broadcast(lr, src=0)
dist.barrier()
