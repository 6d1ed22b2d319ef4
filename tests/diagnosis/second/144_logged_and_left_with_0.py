# truth: rank=1 line=25 kind=early says=ValueError: mask has wrong shape
# never: as many batches
# run: {L} --nproc-per-node=2 {C}/144_logged_and_left_with_0.py
import datetime, os, traceback
import torch, torch.distributed as dist


def train(rank):
    for step in range(20):
        check(rank, step)
        dist.all_reduce(torch.ones(2))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    try:
        train(dist.get_rank())
    except ValueError:
        traceback.print_exc()
        os._exit(0)


def check(rank, step):
    if rank == 1 and step == 3:
        raise ValueError("mask has wrong shape")


main()
