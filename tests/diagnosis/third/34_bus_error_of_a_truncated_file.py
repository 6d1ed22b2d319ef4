# truth: rank=0 line=14 kind=signal says=SIGBUS
# run: {L} --nproc-per-node=2 {C}/34_bus_error_of_a_truncated_file.py
# never: /dev/shm (is|was) (full|too small)
# never: --shm-size
import os, sys, time
rank = int(os.environ["RANK"])
import mmap
if rank == 0:
    time.sleep(0.5)
    with open("tokens.bin", "w+b") as f:
        f.truncate(1 << 20)
        tokens = mmap.mmap(f.fileno(), 1 << 20)
        f.truncate(0)
    total = sum(tokens[i] for i in range(0, 1 << 20, 4096))
time.sleep(300)
