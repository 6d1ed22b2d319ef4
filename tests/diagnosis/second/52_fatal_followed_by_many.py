# truth: rank=1 line=0 kind=exit says=FATAL: data root /mnt/bulk is not mounted
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/52_fatal_followed_by_many.py
import os, sys, time
rank = int(os.environ["RANK"])
time.sleep(0.5)
if rank == 1:
    print("FATAL: data root /mnt/bulk is not mounted", file=sys.stderr)
    for i in range(150):
        print(f"INFO: releasing slot {i}", file=sys.stderr)
    print("bye", file=sys.stderr)
    sys.exit(4)
time.sleep(60)
