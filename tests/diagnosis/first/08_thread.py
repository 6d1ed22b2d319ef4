# truth: rank=1 line=17 kind=exception says=Empty
# run: {L} --nproc-per-node=2 {C}/08_thread.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import queue, threading
def prefetch():
    for i in range(100):
        if rank == 1 and i == 5: raise OSError(5, "Input/output error", "/mnt/nfs/shard-00005.tar")
        batches.put(torch.ones(4))
batches = queue.Queue(2)
dist.init_process_group("gloo")
thread = threading.Thread(target=prefetch, name="prefetch", daemon=True); thread.start()
for step in range(100):
    time.sleep(0.02)
    batch = batches.get(timeout=3)
    dist.all_reduce(batch)
dist.destroy_process_group()
# also: OSError.*08_thread\.py:10
