# truth: rank=1 line=0 kind=signal says=SIGALRM
# run: {L} --nproc-per-node=2 {C}/35_own_alarm.py
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
import signal
if rank == 1:
    signal.alarm(1)
time.sleep(300)
