# truth: rank=1 line=10 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/55_exit_after_handled_traceback_at_once.py
import logging, os, sys, time
rank = int(os.environ["RANK"])
log = logging.getLogger("train")
def train():
    time.sleep(0.5)
    if rank == 1:
        raise ValueError("bad record 77")
    time.sleep(60)
try:
    train()
except Exception:
    log.exception("training failed")  # here the printed exception is the cause
    sys.exit(1)
