# truth: rank=0 line=14 kind=exception says=mat1 and mat2 shapes cannot be multiplied
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/127_handled_gloo_like_then_cause.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import traceback
try:
    raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40000")
except RuntimeError:
    traceback.print_exc()  # a test of the logging: nothing has happened
def forward(w, x):
    return x @ w
for n in range(5):
    dist.all_reduce(torch.ones(2))
w = torch.ones(4, 4) if rank == 1 else torch.ones(3, 4)
dist.all_reduce(forward(w, torch.ones(2, 4)))
