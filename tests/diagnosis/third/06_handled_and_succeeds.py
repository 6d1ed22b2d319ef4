# truth: rank=none line=0 kind=success says=
# run: {L} --nproc-per-node=2 {C}/06_handled_and_succeeds.py
import os, sys, time
rank = int(os.environ["RANK"])
import traceback
try:
    int("x")
except ValueError:
    traceback.print_exc()
time.sleep(0.5)
