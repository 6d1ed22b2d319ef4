# truth: rank=1 line=0 kind=any says=probably rank 1: it had not joined the process group
# run: {L} --nproc-per-node=2 {C}/170_host_name_of_one_rank.py
import os
from datetime import timedelta
import torch
import torch.distributed as dist

HOSTS = {"0": os.environ.get("MASTER_ADDR", "127.0.0.1"), "1": "trainer-head.invalid"}


def main():
    os.environ["MASTER_ADDR"] = HOSTS[os.environ["RANK"]]
    print("rank", os.environ["RANK"], "joins", os.environ["MASTER_ADDR"], flush=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    w = torch.zeros(4)
    dist.broadcast(w, src=0)
    for step in range(10):
        w += 1
        dist.all_reduce(w)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
