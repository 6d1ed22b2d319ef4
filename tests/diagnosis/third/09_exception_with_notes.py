# truth: rank=0 line=6 kind=exception says=TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'
# run: {L} --nproc-per-node=2 {C}/09_exception_with_notes.py
import os, sys, time
rank = int(os.environ["RANK"])
def loss(a, b):
    return a + b
if rank == 0:
    time.sleep(0.5)
    try:
        loss(1, None)
    except TypeError as e:
        e.add_note("while computing the loss of batch 41")
        e.add_note("sample ids: 17, 18, 19")
        raise
time.sleep(300)
