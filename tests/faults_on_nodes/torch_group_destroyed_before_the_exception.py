import torch
import torch.distributed as dist

dist.init_process_group("gloo")
try:
    if dist.get_rank() == 2:
        raise ValueError("loss is not finite")
    while True:
        dist.all_reduce(torch.ones(4))
finally:
    dist.destroy_process_group()
