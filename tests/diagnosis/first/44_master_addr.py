# truth: rank=all line=8 kind=network says=gpu-node-17.cluster.invalid
# run: {L} --nproc-per-node=2 {C}/44_master_addr.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
os.environ["MASTER_ADDR"] = "gpu-node-17.cluster.invalid"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
dist.barrier(); dist.destroy_process_group()
# also: MASTER_ADDR
# never: gone or late
