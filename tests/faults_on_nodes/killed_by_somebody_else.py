import os
import signal
import time

if os.environ["RANK"] == "2":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
