# truth: rank=1 line=5 kind=exception says=EADDRINUSE
import os, time, signal, sys
r = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
def read_shard(): raise RuntimeError("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29777, code: -98, name: EADDRINUSE")
try:
    time.sleep(0.5)
    if r == 1: read_shard()
    time.sleep(10)
finally:
    if r == 0: os.remove("ckpt.tmp")
# also: 29777
