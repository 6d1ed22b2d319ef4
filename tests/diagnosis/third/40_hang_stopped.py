# truth: rank=0 line=0 kind=hang says=rank 0
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/40_hang_stopped.py
# also: (?i)stopped
import os, sys, time
rank = int(os.environ["RANK"])
import signal
fifo = "gradients"
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
else:
    os.mkfifo(fifo)
    open(fifo).read()
