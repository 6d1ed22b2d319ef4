# truth: rank=0 line=10 kind=signal says=std::bad_alloc
# run: {L} --nproc-per-node=2 {C}/45_cpp_terminate.py
# also: SIGABRT
import os, sys, time
rank = int(os.environ["RANK"])
import ctypes
libc = ctypes.CDLL(None)
def tokenize():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    libc.abort()
if rank == 0:
    time.sleep(0.5)
    tokenize()
time.sleep(300)
