import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 8 if dist.get_rank() == 2 else 4)
torch.nn.parallel.DistributedDataParallel(model)
