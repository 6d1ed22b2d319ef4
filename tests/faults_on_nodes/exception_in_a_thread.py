import os
import sys
import threading
import time

failed = threading.Event()


def prefetch():
    try:
        raise ConnectionError("storage answered 503")
    except ConnectionError:
        failed.set()
        raise


if os.environ["RANK"] == "1":
    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    if failed.is_set():
        sys.exit(1)
time.sleep(60)
