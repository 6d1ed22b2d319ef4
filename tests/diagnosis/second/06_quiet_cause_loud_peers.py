# truth: rank=2 line=13 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 {C}/06_quiet_cause_loud_peers.py
import os, signal, sys, time
rank = int(os.environ["RANK"])
def on_term(signum, frame):
    for i in range(300):
        print(f"FATAL: rank {rank}: tensor {i} was not saved: RuntimeError: CUDA error: out of memory", file=sys.stderr)
    os._exit(134)
signal.signal(signal.SIGTERM, on_term)
time.sleep(0.5)
if rank == 2:
    raise ValueError("bad record 77")
time.sleep(60)
