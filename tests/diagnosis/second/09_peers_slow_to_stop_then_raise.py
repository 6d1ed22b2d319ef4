# truth: rank=1 line=13 kind=exception says=IndexError: list index out of range
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/09_peers_slow_to_stop_then_raise.py
import os, signal, time
rank = int(os.environ["RANK"])
def on_term(signum, frame):
    time.sleep(3)  # tries to save
    raise TimeoutError(f"rank {rank}: could not save within 3 s")
signal.signal(signal.SIGTERM, on_term)
time.sleep(0.5)
vocabulary = ["a", "b"]
def encode(i):
    return vocabulary[i]
if rank == 1:
    encode(2)
time.sleep(60)
