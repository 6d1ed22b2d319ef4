# truth: rank=1 line=0 kind=exit says=5
# also: (?i)quota of 3 retries is used up
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/53_harmless_fatal_elsewhere.py
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 0:
    print("FATAL: could not set CPU affinity (ignored)", file=sys.stderr)
    print("ERROR: no tensorboard, the curves are not written", file=sys.stderr)
    time.sleep(60)
time.sleep(1)
print("quota of 3 retries is used up")
sys.exit(5)
