import atexit
import os
import sys
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

atexit.register(lambda: 1 / 0)
atexit.register(lambda: print("run: 12\nsummary: none", file=sys.stderr))
raise ValueError("bad batch")
