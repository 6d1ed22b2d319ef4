import atexit
import os
import sys
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def report():
    time.sleep(8)  # longer than a busy agent needs to inspect this process
    print("report error: no summary", file=sys.stderr)


atexit.register(report)
{}["a"]
