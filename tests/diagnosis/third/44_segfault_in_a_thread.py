# truth: rank=1 line=8 kind=signal says=SIGSEGV
# run: {L} --nproc-per-node=2 {C}/44_segfault_in_a_thread.py
# also: rank 1
import os, sys, time
rank = int(os.environ["RANK"])
import ctypes, threading
def decode(address):
    return ctypes.string_at(address)
if rank == 1:
    time.sleep(0.5)
    threading.Thread(target=decode, args=(8,)).start()
time.sleep(300)
