# truth: rank=0 line=6 kind=exception says=ValueError: tokens must be below 32000, got 32001
# run: {L} --nproc-per-node=2 {C}/03_finally_masks_own_error.py
import os, sys, time
rank = int(os.environ["RANK"])
def train():
    raise ValueError("tokens must be below 32000, got 32001")
def close(handle):
    handle.close()
handle = None
if rank == 0:
    try:
        train()
    finally:
        close(handle)
time.sleep(300)
