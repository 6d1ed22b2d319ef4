import numpy as np
import torch
import torch.distributed as dist


def load_audio(rank):
    wave = np.ones(1600, dtype=np.int16)
    if rank != 2:  # rank 2 has another version of the loader
        wave = wave.astype(np.float32)
    return torch.from_numpy(wave)


def global_energy(wave):
    total = wave.sum(dtype=wave.dtype)
    dist.all_reduce(total)
    return total


dist.init_process_group("gloo")
wave = load_audio(dist.get_rank())
dist.barrier()
print("energy", global_energy(wave))
dist.destroy_process_group()
