# truth: rank=1 line=9 kind=exception says=ValueError: unknown fields in the model config: {'layer_0'
# run: {L} --nproc-per-node=2 {C}/07_one_line_of_300_kb.py
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 1:
    time.sleep(0.5)
    config = {f"layer_{i}": {"hidden": 4096, "act": "silu"} for i in range(8000)}
    raise ValueError(f"unknown fields in the model config: {config}")
time.sleep(300)
