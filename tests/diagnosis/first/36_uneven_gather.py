# truth: rank=none line=9 kind=mismatch says=different sizes
# run: {L} --nproc-per-node=3 {C}/36_uneven_gather.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
mine = torch.arange(10.0).tensor_split(world)[rank]
every = [torch.empty_like(mine) for _ in range(world)]; dist.all_gather(every, mine)
dist.barrier(); dist.destroy_process_group()
# also: all_gather
