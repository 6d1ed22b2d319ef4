import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def watch(model):
    for name, p in model.named_parameters():

        def check(grad, name=name):
            if not torch.isfinite(grad).all():
                raise FloatingPointError(f"gradient of {name} is not finite")

        p.register_hook(check)


dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU(), torch.nn.Linear(8, 1))
with torch.no_grad():
    net[0].weight.fill_(0.1)  # all units active
watch(net)
model = DDP(net)
for step in range(4):
    x = torch.rand(4, 8)
    if rank == 2 and step == 2:
        x[0, 0] = float("inf")
    y = torch.nan_to_num(model(x), posinf=0.0)
    y.sum().backward()
dist.destroy_process_group()
