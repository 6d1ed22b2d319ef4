# truth: rank=1 line=11 kind=hang says=rank 1
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/38_hang_lock.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import threading
dist.init_process_group("gloo")
lock = threading.Lock()
def log(text):
    with lock:
        print(text)
def step():
    with lock:
        log("nested")
if rank == 1:
    step()
dist.all_reduce(torch.ones(2))
