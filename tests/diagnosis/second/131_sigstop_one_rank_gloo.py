# truth: rank=0 line=0 kind=hang says=0
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/131_sigstop_one_rank_gloo.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import signal
for n in range(10):
    dist.all_reduce(torch.ones(4))
    if rank == 0 and n == 4:
        os.kill(os.getpid(), signal.SIGSTOP)
