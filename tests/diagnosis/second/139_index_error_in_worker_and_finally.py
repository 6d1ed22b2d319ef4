# truth: rank=2 line=13 kind=exception says=IndexError: list index out of range
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# never: (?i)rank 2[^\n]*OSError: buffers are not flushed
# run: {L} --nproc-per-node=3 {C}/139_index_error_in_worker_and_finally.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
import signal
signal.signal(signal.SIGTERM, lambda *a: sys.exit(1))
labels = [0, 1, 2]
def batch(n):
    return labels[n] if rank == 2 else 0
try:
    for n in range(8):
        dist.all_reduce(torch.tensor([float(batch(n))]))
        time.sleep(0.05)
finally:
    dist.destroy_process_group()
    if rank != 2:
        raise OSError("buffers are not flushed")
