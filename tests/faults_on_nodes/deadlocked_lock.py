# relight run --hang-timeout=2
import os
import threading
import time

lock = threading.Lock()


def log_metrics():
    with lock, lock:
        pass


if os.environ["RANK"] == "3":
    log_metrics()
while True:
    time.sleep(60)
