# truth: rank=0 line=9 kind=exception says=RuntimeError
# run: unshare -m bash -c "mkdir -p tiny; mount -t tmpfs -o size=4M none tiny; {L} --nproc-per-node=2 {C}/30_enospc.py"
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
def save(step):
    if rank == 0:
        torch.save({"w": torch.ones(1 << 22)}, f"tiny/step_{step}.pt")
    dist.barrier()
dist.init_process_group("gloo")
save(1); dist.destroy_process_group()
# also: full
