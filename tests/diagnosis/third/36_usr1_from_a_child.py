# truth: rank=1 line=0 kind=signal says=SIGUSR1
# run: {L} --nproc-per-node=2 {C}/36_usr1_from_a_child.py
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
import subprocess
if rank == 1:
    time.sleep(0.5)
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -USR1 {os.getpid()}"])
time.sleep(300)
