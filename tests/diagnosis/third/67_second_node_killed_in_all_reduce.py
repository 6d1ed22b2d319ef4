# truth: rank=3 line=0 kind=signal says=SIGKILL
# run: bash -c 'for i in 1 2; do {L} --nnodes=2 --nproc-per-node=2 --rdzv-backend=file --rdzv-endpoint=$PWD/meet --rdzv-id=x {C}/67_second_node_killed_in_all_reduce.py & done; wait'
# also: rank 3
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import signal
dist.init_process_group("gloo")
for step in range(100):
    if rank == 3 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
