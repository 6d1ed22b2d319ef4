import os
import time


def read():
    raise OSError("stale file handle")


def fall_back():
    raise LookupError("no replica has the shard")


if os.environ["RANK"] == "2":
    try:
        read()
    except OSError:
        fall_back()
time.sleep(60)
