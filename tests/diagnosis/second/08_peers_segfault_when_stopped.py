# truth: rank=1 line=9 kind=exception says=AssertionError: loss is nan at step 3
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/08_peers_segfault_when_stopped.py
import ctypes, os, signal, time
rank = int(os.environ["RANK"])
# as some native libraries do: their cleaning up at SIGTERM crashes
signal.signal(signal.SIGTERM, lambda *a: ctypes.string_at(0))
def check(loss, step):
    assert loss == loss, f"loss is nan at step {step}"
time.sleep(0.5)
for step in range(600):
    check(float("nan") if rank == 1 and step == 3 else 1.0, step)
    time.sleep(0.1)
