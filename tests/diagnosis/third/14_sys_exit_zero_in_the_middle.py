# truth: rank=0 line=0 kind=early says=rank 0
# run: {L} --nproc-per-node=3 {C}/14_sys_exit_zero_in_the_middle.py
# never: rank [12] raised
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
for step in range(20):
    if rank == 0 and step == 5:
        print("validation loss below target, stopping", flush=True)
        sys.exit(0)
    dist.all_reduce(torch.ones(2))
    time.sleep(0.05)
