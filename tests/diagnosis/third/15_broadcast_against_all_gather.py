# truth: rank=none line=12 kind=mismatch says=broadcast
# run: {L} --nproc-per-node=3 --hang-timeout=12 {C}/15_broadcast_against_all_gather.py
# also: all_gather
# never: transport/tcp/pair.cc[^\n]*\n[^\n]*rank
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
t = torch.ones(3)
if rank == 1:
    dist.broadcast(t, src=0)
else:
    out = [torch.empty(3) for _ in range(3)]
    dist.all_gather(out, t)
dist.barrier()
