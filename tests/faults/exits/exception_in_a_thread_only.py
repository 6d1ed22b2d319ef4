import os
import sys
import threading
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def work():
    raise ValueError("in a thread")


thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.exit(3)
