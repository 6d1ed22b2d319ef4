# truth: rank=0 line=10 kind=exception says=pickle
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/137_broadcast_object_unpicklable.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
state = [lambda step: step * 2] if rank == 0 else [None]
dist.barrier()
dist.broadcast_object_list(state, src=0)
