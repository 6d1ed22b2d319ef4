# truth: rank=1 line=13 kind=hang says=rank 1
# run: cc -shared -fPIC -o lib67.so {C}/src/lib67.c && {L} --nproc-per-node=3 --hang-timeout=12 --shutdown-timeout=5 {C}/67_hang_uninterruptible.py
# SKIP torchrun
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import ctypes
lib = ctypes.CDLL(os.path.abspath("lib67.so"))
dist.init_process_group("gloo")
for step in range(20):
    if rank == 1 and step == 12:
        lib.checkpoint_to_nfs()
    dist.all_reduce(torch.ones(4))
# also: (?i)uninterruptible|state D
