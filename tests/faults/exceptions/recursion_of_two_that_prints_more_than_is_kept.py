import os
import sys
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def f(n):
    return g(n + 1) + len(str(n)) + len(str(n)) + len(str(n))


def g(n):
    return f(n + 1)


sys.setrecursionlimit(3000)
f(0)
