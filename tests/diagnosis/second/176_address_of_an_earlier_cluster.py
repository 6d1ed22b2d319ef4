# truth: rank=1 line=0 kind=any says=it had not joined the process group
# also: it was trying to connect to 127.0.0.53:10099; relight had set MASTER_ADDR=
# run: {L} --nproc-per-node=2 {C}/176_address_of_an_earlier_cluster.py
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

# left over from the two-host runs in March
CLUSTER = {
    "trainer-0": {},
    "trainer-1": {"MASTER_ADDR": "127.0.0.53", "MASTER_PORT": "10099"},
}


def apply_cluster_overrides(rank):
    for key, value in CLUSTER[f"trainer-{rank}"].items():
        os.environ[key] = value


def build_cache(rank):
    if rank == 0:
        time.sleep(1)
    return torch.arange(64, dtype=torch.float32).reshape(8, 8)


def main():
    rank = int(os.environ["RANK"])
    apply_cluster_overrides(rank)
    data = build_cache(rank)
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    model = DDP(nn.Linear(8, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        opt.zero_grad()
        model(data).mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
