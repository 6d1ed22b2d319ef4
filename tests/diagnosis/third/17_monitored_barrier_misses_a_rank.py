# truth: rank=2 line=0 kind=hang says=rank 2
# run: {L} --nproc-per-node=3 {C}/17_monitored_barrier_misses_a_rank.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
def slow_download():
    time.sleep(300)
if rank == 2:
    slow_download()
dist.monitored_barrier(timeout=datetime.timedelta(seconds=6))
