# truth: rank=1 line=8 kind=exception says=TimeoutError: batch 3 took longer than 1 s
# run: {L} --nproc-per-node=2 {C}/37_alarm_handler_raises.py
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import signal
def late(signum, frame):
    raise TimeoutError("batch 3 took longer than 1 s")
signal.signal(signal.SIGALRM, late)
def load():
    time.sleep(300)
if rank == 1:
    signal.alarm(1)
load()
