# truth: rank=0 line=12 kind=exception says=LookupError: no column named label
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/23_thousands_of_warnings_after.py
import atexit, os, sys, time
rank = int(os.environ["RANK"])
@atexit.register
def report():
    for i in range(3000 if rank == 0 else 0):
        print(f"WARNING: buffer {i} was not released: Error: leak of {i} bytes", file=sys.stderr)
time.sleep(0.5)
if rank == 0:
    raise LookupError("no column named label")
time.sleep(60)
