import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

batches = queue.Queue(maxsize=2)


def prefetch(rows):
    for row in rows:
        batches.put(torch.tensor(row["tokens"], dtype=torch.float32))


dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group(timeout=timedelta(seconds=5))
rows = [{"tokens": [i, i + 1]} for i in range(8)]
if rank == 1:
    rows[4] = {"text": "not tokenised"}
dist.barrier()
threading.Thread(target=prefetch, args=(rows,), daemon=True).start()
for step in range(len(rows)):
    batch = batches.get()  # rank 1 waits here for ever
    dist.all_reduce(batch, group=group)
dist.destroy_process_group()
