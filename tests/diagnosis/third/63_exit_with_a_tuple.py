# truth: rank=1 line=0 kind=exit says=no checkpoint
# run: {L} --nproc-per-node=2 {C}/63_exit_with_a_tuple.py
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 1:
    time.sleep(0.5)
    sys.exit(("no checkpoint", "/ckpt/step-100"))
time.sleep(300)
