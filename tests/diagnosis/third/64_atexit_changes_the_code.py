# truth: rank=1 line=0 kind=exit says=7
# run: {L} --nproc-per-node=2 {C}/64_atexit_changes_the_code.py
# also: 3 of 40 uploads failed
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
import atexit
def flush():
    print("tracker: 3 of 40 uploads failed", file=sys.stderr, flush=True)
    os._exit(7)
if rank == 1:
    atexit.register(flush)
    sys.exit(0)
time.sleep(300)
