# truth: rank=1 line=7 kind=exception says=ConnectionResetError
import os, time, signal, sys
r = int(os.environ["RANK"])
def stop(*_): raise RuntimeError("training was interrupted")
signal.signal(signal.SIGTERM, stop)
time.sleep(0.5)
if r == 1: raise ConnectionResetError(104, "Connection reset by peer")   # from S3
time.sleep(10)
