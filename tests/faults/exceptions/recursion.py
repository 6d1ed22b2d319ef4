import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def f(n):
    return f(n + 1)


f(0)
