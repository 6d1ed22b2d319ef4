import os
import signal
import time

if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: None)
    time.sleep(1)
    raise ValueError("bad batch")
raise ConnectionResetError(104, "Connection reset by peer")
