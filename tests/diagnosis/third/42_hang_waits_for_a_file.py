# truth: rank=1 line=11 kind=hang says=rank 1
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/42_hang_waits_for_a_file.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import pathlib
dist.init_process_group("gloo")
def wait_for(path):
    while not path.exists():
        time.sleep(1)
if rank == 1:
    wait_for(pathlib.Path("/nonexistent/tokenizer.json"))
dist.barrier()
