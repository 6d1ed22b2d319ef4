# truth: rank=0 line=0 kind=exit says=255
# run: {L} --nproc-per-node=2 {C}/62_exit_minus_one.py
# also: rank 0
# never: (?i)\bssh\b
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 0:
    time.sleep(0.5)
    sys.exit(-1)
time.sleep(300)
