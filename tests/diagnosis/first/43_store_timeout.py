# truth: rank=0 line=7 kind=network says=in prepare (43_
# run: {L} --nproc-per-node=2 {C}/43_store_timeout.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
def prepare(): time.sleep(60)
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if rank == 0: prepare(); store.set("data_ready", "1")
else: store.wait(["data_ready"], datetime.timedelta(seconds=6))
dist.destroy_process_group()
