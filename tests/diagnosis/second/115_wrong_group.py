# truth: rank=1 line=14 kind=mismatch says=all_reduce
# also: (?i)group
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/115_wrong_group.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([0, 1])
dist.barrier()
if rank == 0:
    dist.all_reduce(torch.ones(2), group=pair)
if rank == 1:
    dist.all_reduce(torch.ones(2))  # forgot group=pair
if rank < 2:
    print("pair is done")
dist.barrier()
