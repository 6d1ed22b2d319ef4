# truth: rank=0 line=11 kind=exception says=is full
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: unshare -m bash -c "mkdir -p full.tmp && mount -t tmpfs -o size=2M none full.tmp && {L} --nproc-per-node=2 {C}/132_disk_full_torch_save.py; umount full.tmp; rmdir full.tmp"
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
model = {"w": torch.zeros(1000, 1000)}
dist.barrier()
if rank == 0:
    torch.save(model, "full.tmp/ckpt.pt")
dist.barrier()
