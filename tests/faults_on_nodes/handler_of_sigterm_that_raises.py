import os
import signal
import time


def stop(*_):
    raise SystemExit("stopped, saved nothing")


signal.signal(signal.SIGTERM, stop)
if os.environ["RANK"] == "0":
    raise ValueError("bad batch")
time.sleep(60)
