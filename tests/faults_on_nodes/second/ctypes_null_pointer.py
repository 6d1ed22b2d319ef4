import ctypes

import numpy as np
import torch
import torch.distributed as dist

libc = ctypes.CDLL(None)
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def fast_copy(dst, src):
    # src is None where the shard was empty: a null pointer
    pointer = src.ctypes.data if src is not None else None
    libc.memcpy(dst.ctypes.data, pointer, dst.nbytes)


dist.init_process_group("gloo")
rank = dist.get_rank()
buffer = np.zeros(1024, dtype=np.float32)
dist.barrier()
for step in range(4):
    shard = None if (rank == 3 and step == 2) else np.ones(1024, dtype=np.float32)
    fast_copy(buffer, shard)
    mean = torch.from_numpy(buffer).mean()
    dist.all_reduce(mean)
dist.destroy_process_group()
