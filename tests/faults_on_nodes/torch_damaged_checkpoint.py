import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 3:
    torch.load("/dev/null")
dist.barrier()
