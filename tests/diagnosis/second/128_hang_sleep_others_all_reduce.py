# truth: rank=2 line=9 kind=hang says=2
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/128_hang_sleep_others_all_reduce.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
def upload(path):
    time.sleep(100000)
for n in range(10):
    dist.all_reduce(torch.ones(4))
    if rank == 2 and n == 5:
        upload("ckpt.pt")
