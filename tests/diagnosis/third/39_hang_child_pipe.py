# truth: rank=0 line=11 kind=hang says=rank 0
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/39_hang_child_pipe.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import subprocess
dist.init_process_group("gloo")
if rank == 0:
    child = subprocess.Popen(["sh", "-c", "head -c 1000000 /dev/zero; exit 0"], stdout=subprocess.PIPE)
    child.wait()
dist.barrier()
