import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def deep(n):
    if n:
        return deep(n - 1), n
    raise ValueError("bad batch")


deep(40)
