import multiprocessing as mp
import os


def tokenize(raw):
    return raw.decode("utf-8").split()


def corpus(rank):
    lines = [b"the quick brown fox"] * 20
    if rank == 2:
        lines[11] = "na\u00efve".encode("latin-1")
    return lines


def main():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    with mp.get_context("spawn").Pool(1) as pool:
        tokens = pool.map(tokenize, corpus(dist.get_rank()))
    count = torch.tensor(sum(map(len, tokens)))
    dist.all_reduce(count)
    print("tokens", int(count))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
