# truth: rank=0 line=10 kind=signal says=SIGBUS
# run: {L} --nproc-per-node=2 {C}/22_sigbus_mmap.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import numpy as np
path = f"mm{os.getpid()}.bin"; np.zeros(1 << 20, dtype="u1").tofile(path)
data = np.memmap(path, mode="r"); dist.init_process_group("gloo")
if rank == 0: os.truncate(path, 4096); data[500000:500010].sum()
dist.barrier(); dist.destroy_process_group()
# never: often a full /dev/shm
