# truth: rank=1 line=5 kind=exception says=ConnectionResetError
import os, time, signal, sys
r = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
def read_shard(): raise ConnectionResetError(104, "Connection reset by peer")   # from S3
try:
    time.sleep(0.5)
    if r == 1: read_shard()
    time.sleep(10)
finally:
    if r == 0: os.remove("ckpt.tmp")
