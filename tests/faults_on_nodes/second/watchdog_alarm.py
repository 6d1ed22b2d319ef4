import signal
import time

import torch
import torch.distributed as dist


def download(url):
    signal.alarm(3)  # meant as a time limit, but nobody handles it
    data = torch.rand(10)
    return data  # and nobody calls signal.alarm(0)


dist.init_process_group("gloo")
rank = dist.get_rank()
data = torch.rand(10)
dist.barrier()
if rank == 3:
    data = download("https://example.com/val.pt")
    time.sleep(20)  # slow preprocessing of it
score = data.mean()
dist.all_reduce(score)
dist.destroy_process_group()
