# truth: rank=0 line=0 kind=exception says=RuntimeError: 1 of 3 ranks failed in round 3
# also: perhaps one on rank 1
# also: ZeroDivisionError: float division by zero
# never: ^relight: rank 0 raised
# run: {L} --nproc-per-node=3 {C}/173_errors_gathered_on_rank_0.py
import sys
import time
import traceback

import torch
import torch.distributed as dist


def weighted_mean(values, weights):
    numerator = float((values * weights).sum())
    return numerator / int(weights.sum())


def local_round(rank, number):
    gen = torch.Generator().manual_seed(10 * rank + number)
    values = torch.rand(12, generator=gen)
    weights = torch.ones(12, dtype=torch.long)
    if rank == 1 and number == 3:
        weights.zero_()  # all clients of this region dropped out
    return weighted_mean(values, weights)


def guarded(fn, *args):
    try:
        return fn(*args), None
    except Exception:
        return None, traceback.format_exc()


def raise_if_any_failed(error, rank, world, number):
    errors = [None] * world
    dist.all_gather_object(errors, error)
    failed = {r: text for r, text in enumerate(errors) if text}
    if not failed:
        return
    if rank == 0:
        report = "\n".join(f"--- rank {r} ---\n{text}" for r, text in failed.items())
        raise RuntimeError(f"{len(failed)} of {world} ranks failed in round {number}\n{report}")
    time.sleep(1.0)
    sys.exit(1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for number in range(6):
        value, error = guarded(local_round, rank, number)
        raise_if_any_failed(error, rank, world, number)
        total = torch.tensor(value)
        dist.all_reduce(total)
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
