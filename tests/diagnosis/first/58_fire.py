# truth: rank=all line=0 kind=usage says=learning_rat
# run: {L} --nproc-per-node=2 {C}/58_fire.py --learning_rat=0.1
# EXTRA
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import fire
def main(learning_rate: float, epochs: int = 1):
    dist.init_process_group("gloo"); dist.barrier(); dist.destroy_process_group()
fire.Fire(main)
# never: fire/core.py
