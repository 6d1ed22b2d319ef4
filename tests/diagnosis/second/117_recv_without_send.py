# truth: rank=1 line=15 kind=mismatch says=recv
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/117_recv_without_send.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
# a pipeline of which the middle has forgotten to send
x = torch.ones(4)
if rank == 0:
    dist.send(x, 1)
    dist.barrier()
if rank == 1:
    dist.recv(x, 0)
    dist.barrier()  # instead of a send
if rank == 2:
    dist.recv(x, 1)
    dist.barrier()
