import os
import signal
import time

if os.environ["RANK"] == "2":
    os.kill(os.getpid(), signal.SIGBUS)
time.sleep(60)
