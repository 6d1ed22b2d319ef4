# truth: rank=0 line=10 kind=exception says=SIGKILL
# run: {L} --nproc-per-node=2 {C}/26_child_killed.py
# never: rank 0 was killed
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import subprocess
if rank == 0:
    time.sleep(0.5)
    subprocess.check_output(["bash", "-c", "echo resizing; kill -9 $$"])
time.sleep(300)
