# truth: rank=1 line=12 kind=exception says=FloatingPointError: loss is nan
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/126_victims_wrap_gloo_error.py
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
class StepFailed(Exception): ...
try:
    for n in range(10):
        if rank == 1 and n == 4:
            raise FloatingPointError("loss is nan at step 4")
        try:
            dist.all_reduce(torch.ones(8))
        except RuntimeError as err:
            raise StepFailed(f"step {n} failed on rank {rank}") from err
finally:
    if rank == 1:
        dist.destroy_process_group()
        time.sleep(3)
