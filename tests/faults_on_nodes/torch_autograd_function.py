import torch
import torch.distributed as dist


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        if dist.get_rank() == 3:
            raise RuntimeError("no gradient for a scale of 0")
        return 2 * gradient


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(10):
    Scale.apply(model(torch.ones(2, 4))).sum().backward()
