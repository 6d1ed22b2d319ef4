# truth: rank=3 line=7 kind=exception says=ConnectionResetError
import os, time, signal, sys
r = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
try:
    time.sleep(1)
    if r == 3: raise ConnectionResetError(104, "Connection reset by peer")   # from S3
    time.sleep(10)
finally:
    if r == 0: os.remove("ckpt.tmp")
# run: bash -c 'for i in 1 2; do {L} --nnodes=2 --nproc-per-node=2 --rdzv-backend=file --rdzv-endpoint=$PWD/meet --rdzv-id=x {C}/p_b_nodes.py & done; wait'
