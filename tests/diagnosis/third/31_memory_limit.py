# truth: rank=1 line=12 kind=exception says=MemoryError
# run: {L} --nproc-per-node=2 {C}/31_memory_limit.py
# never: (?i)killed by the kernel|oom.killer
import os, sys, time
rank = int(os.environ["RANK"])
import resource
if rank == 1:
    time.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    pool = []
    while True:
        pool.append(bytearray(256 << 20))
time.sleep(300)
