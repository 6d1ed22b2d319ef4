# truth: rank=all line=7 kind=network says=wait
# run: {L} --nproc-per-node=2 {C}/02_init_world_size.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=3, timeout=datetime.timedelta(seconds=8))
dist.barrier()
# also: rank 2
# never: gone or late
