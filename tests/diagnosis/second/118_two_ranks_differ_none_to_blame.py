# truth: rank=none line=0 kind=mismatch says=all_reduce
# also: all_gather
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/118_two_ranks_differ_none_to_blame.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(2)
if rank == 0:
    dist.all_reduce(x)
else:
    dist.all_gather([torch.ones(2), torch.ones(2)], x)
dist.barrier()
