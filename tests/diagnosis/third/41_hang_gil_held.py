# truth: rank=1 line=10 kind=hang says=rank 1
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/41_hang_gil_held.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import ctypes
dist.init_process_group("gloo")
if rank == 1:
    ctypes.PyDLL(None).sleep(1000)
dist.all_reduce(torch.ones(2))
