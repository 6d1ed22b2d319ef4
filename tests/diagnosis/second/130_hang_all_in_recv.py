# truth: rank=all line=10 kind=hang says=recv
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/130_hang_all_in_recv.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.zeros(1)
dist.barrier()
# each waits for the other to send first
dist.recv(x, src=(rank + 1) % world)
dist.send(x, dst=(rank + 1) % world)
