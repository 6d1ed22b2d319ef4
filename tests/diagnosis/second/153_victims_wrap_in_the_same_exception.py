# truth: rank=1 line=10 kind=exception says=ValueError: label 1000 is out of range
# never: ranks 0-2
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/153_victims_wrap_in_the_same_exception.py
import torch, torch.distributed as dist
class StepError(Exception): ...
dist.init_process_group("gloo")
def loss(label):
    if label >= 1000:
        raise ValueError(f"label {label} is out of range")
    return torch.ones(1)
def step(n):
    try:
        dist.all_reduce(loss(1000 if n == 4 and dist.get_rank() == 1 else 7))
    except Exception as error:
        raise StepError(f"step {n} failed") from error
for n in range(10):
    step(n)
