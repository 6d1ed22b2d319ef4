# truth: rank=0 line=9 kind=exception says=UnicodeDecodeError
# run: {L} --nproc-per-node=2 {C}/23_producer_thread_dies.py
import os, sys, time
rank = int(os.environ["RANK"])
import queue, threading
batches = queue.Queue()
def produce():
    for raw in (b"good", b"\xff\xfe"):
        batches.put(raw.decode("utf-8"))
if rank == 0:
    threading.Thread(target=produce, daemon=True).start()
    while True:
        batches.get(timeout=3)
time.sleep(300)
