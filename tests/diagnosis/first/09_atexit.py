# truth: rank=0 line=9 kind=exception says=ConnectionRefusedError
# run: {L} --nproc-per-node=2 {C}/09_atexit.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
import atexit, traceback, socket
def upload():
    try: socket.create_connection(("127.0.0.1", 9), 2)
    except OSError:
        traceback.print_exc(); os._exit(1)
if rank == 0: atexit.register(upload)
dist.init_process_group("gloo"); dist.barrier(); dist.destroy_process_group()
print("done", rank)
# never: gone or late
# never: another rank
