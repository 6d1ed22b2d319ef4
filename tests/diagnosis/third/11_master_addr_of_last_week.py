# truth: rank=all line=9 kind=network says=node17.invalid
# run: {L} --nproc-per-node=2 {C}/11_master_addr_of_last_week.py
# never: (?i)gone or late
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
os.environ["MASTER_ADDR"] = "node17.invalid"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
dist.barrier()
