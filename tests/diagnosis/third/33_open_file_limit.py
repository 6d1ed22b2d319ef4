# truth: rank=0 line=9 kind=exception says=Too many open files
# run: {L} --nproc-per-node=2 {C}/33_open_file_limit.py
import os, sys, time
rank = int(os.environ["RANK"])
import resource
if rank == 0:
    time.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    shards = [open(f"shard-{i}.bin", "wb") for i in range(100)]
time.sleep(300)
