import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 3:
    ctypes.string_at(0)
while True:
    dist.all_reduce(torch.ones(4))
