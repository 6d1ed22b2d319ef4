# truth: rank=all line=15 kind=exception says=Expected to have finished reduction in the prior iteration
# run: {L} --nproc-per-node=2 {C}/70_unused_parameters.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x): return self.used(x)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Net())
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
