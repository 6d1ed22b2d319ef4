# truth: rank=1 line=9 kind=mismatch says=new_group
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/116_new_group_other_members.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
if rank == 1:  # numbers its neighbours in its own way
    pair = dist.new_group([1, 2])
else:
    pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(torch.ones(2), group=pair)
dist.all_reduce(torch.ones(3))
print("done")
