# truth: rank=1 line=9 kind=exception says=No space left on device
# run: {L} --nproc-per-node=2 {C}/55_disk_full_at_flush.py
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
def save(f):
    for i in range(100):
        print("metrics", i, file=f)
    f.flush()
if rank == 1:
    time.sleep(0.5)
    save(open("/dev/full", "w"))
time.sleep(300)
