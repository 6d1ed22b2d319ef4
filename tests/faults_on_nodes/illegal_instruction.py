import os
import signal
import time

if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGILL)
time.sleep(60)
