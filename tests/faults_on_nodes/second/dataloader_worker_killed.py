import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        if i == 6 and dist_rank == 1:
            # the kernel's OOM killer takes the worker that decodes a huge image
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(8) * i


dist.init_process_group("gloo")
dist_rank = dist.get_rank()
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
dist.barrier()
loader = DataLoader(Images(), batch_size=2, num_workers=1)
for batch in loader:
    loss = model(batch).mean()
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    opt.step()
dist.destroy_process_group()
