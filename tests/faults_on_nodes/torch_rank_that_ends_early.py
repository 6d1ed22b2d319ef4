import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
batches = 3 if dist.get_rank() == 1 else 5
for batch in range(batches):
    if batch == 3:
        time.sleep(3)  # rank 1 is gone by now
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
