# truth: rank=1 line=12 kind=exception says=FloatingPointError: loss is nan at step 40
# run: {L} --nproc-per-node=2 {C}/69_recorded_main.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if rank == 1:
        time.sleep(0.5)
        raise FloatingPointError("loss is nan at step 40")
    time.sleep(300)
main()
