# truth: rank=1 line=11 kind=exception says=File too large
# run: {L} --nproc-per-node=2 {C}/32_file_size_limit.py
import os, sys, time
rank = int(os.environ["RANK"])
import resource
if rank == 1:
    time.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with open("ckpt.bin", "wb", buffering=0) as f:
        for i in range(8):
            f.write(b"0" * (1 << 19))
time.sleep(300)
