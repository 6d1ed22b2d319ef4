import json
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def hook(pairs):
    return pairs["id"]


json.loads("{}", object_hook=hook)
