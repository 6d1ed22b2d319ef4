# truth: rank=1 line=0 kind=signal says=SIGSEGV
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/133_segfault_after_gloo.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import ctypes
class Poisoned(torch.nn.Module):
    def forward(self, x):
        if rank == 1:
            ctypes.string_at(1)  # a kernel reads where it must not
        return x
dist.all_reduce(torch.ones(4))
Poisoned()(torch.ones(4))
dist.all_reduce(torch.ones(4))
