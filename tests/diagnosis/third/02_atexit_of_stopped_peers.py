# truth: rank=1 line=16 kind=exception says=KeyError: 'lr_scheduler'
# run: {L} --nproc-per-node=3 {C}/02_atexit_of_stopped_peers.py
# never: rank [02] raised
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import atexit, signal
signal.signal(signal.SIGTERM, lambda s, f: sys.exit(0))
def close_tracker():
    if rank != 1:
        raise ConnectionError("wandb: the run could not be finished, 12 rows are lost")
atexit.register(close_tracker)
if rank == 1:
    time.sleep(1)
    state = {"model": 1, "optimizer": 2}
    state["lr_scheduler"]
time.sleep(300)
