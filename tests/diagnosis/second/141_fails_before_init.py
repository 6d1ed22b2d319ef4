# truth: rank=1 line=8 kind=exception says=KeyError: 'DATA_ROOT'
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/141_fails_before_init.py
import os
import torch, torch.distributed as dist
if os.environ["RANK"] != "1":  # a profile that one host has not
    os.environ["DATA_ROOT"] = "/data"
root = os.environ["DATA_ROOT"]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
