import os
import time


def walk(node):
    return walk([node])


if os.environ["RANK"] == "2":
    walk([])
time.sleep(60)
