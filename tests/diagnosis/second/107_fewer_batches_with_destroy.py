# truth: rank=2 line=0 kind=early says=2
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 --hang-timeout=10 {C}/107_fewer_batches_with_destroy.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
data = list(range(10))[rank::world] + ([1] if rank < 2 else [])
print(rank, len(data))
for x in data[:3] if rank == 2 else data[:4]:
    dist.all_reduce(torch.tensor([float(x)]))
dist.destroy_process_group()
if rank == 2:
    time.sleep(3)  # slow to end
