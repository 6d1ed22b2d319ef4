import torch.distributed as dist
import torch.multiprocessing as mp


def work(index):
    raise ValueError(f"process {index} found no data")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        mp.spawn(work, nprocs=1)
    dist.barrier()
