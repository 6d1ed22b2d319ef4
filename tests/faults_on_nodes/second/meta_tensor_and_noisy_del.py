import gc

import torch
import torch.distributed as dist


class Profiler:
    def __init__(self, path):
        self.path = path  # self.file is opened only in start()

    def __del__(self):
        self.file.close()  # harmless: Python ignores errors in __del__


def build(rank):
    # rank 1 skips initialisation since it will load a checkpoint, but does not
    with torch.device("meta" if rank == 1 else "cpu"):
        model = torch.nn.Linear(16, 4)
    return model.to("cpu")


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    profiler = Profiler("profile.json")
    del profiler
    gc.collect()
dist.barrier()
model = build(rank)
out = model(torch.rand(2, 16)).sum().detach()
dist.all_reduce(out)
dist.destroy_process_group()
