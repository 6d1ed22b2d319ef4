import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["RANK"] == "0":
    raise ValueError("bad batch")
time.sleep(60)
