# truth: rank=1 line=8 kind=exception says=tar: shard-3.tar: Cannot open: No such file or directory
# run: {L} --nproc-per-node=2 {C}/25_tar_fails.py
import os, sys, time
rank = int(os.environ["RANK"])
import subprocess
if rank == 1:
    time.sleep(0.5)
    subprocess.run(["tar", "-xf", "shard-3.tar"], check=True)
time.sleep(300)
