# truth: rank=2 line=15 kind=exception says=ZeroDivisionError: float division by zero
# never: before that, it printed
# run: {L} --nproc-per-node=4 {C}/166_logging_fails.py
import logging
import os
import tempfile

import torch
import torch.distributed as dist

log = logging.getLogger("train")


def accuracy(correct, seen):
    return 100.0 * correct / seen


def run(rank):
    x = torch.randn(32, 4)
    for epoch in range(4):
        # rank 2 got an empty validation split
        val = x[:0] if rank == 2 and epoch == 1 else x
        correct = int((val.sum(1) > 0).sum())
        acc = torch.tensor(accuracy(correct, len(val)))
        dist.all_reduce(acc)
        log.info("epoch %d acc %.1f", epoch, acc.item() / dist.get_world_size())


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    try:
        with tempfile.TemporaryFile("w+") as stream:
            log.addHandler(logging.StreamHandler(stream))
            log.setLevel(logging.INFO)
            run(rank)
    except Exception:
        log.error("rank %d crashed", rank)     # goes to the stream that the with has closed
        raise
    finally:
        log.info("rank %d shutting down", rank)


if __name__ == "__main__":
    main()
