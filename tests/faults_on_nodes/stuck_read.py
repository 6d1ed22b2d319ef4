# relight run --hang-timeout=2
import os
import time

reads, writes = os.pipe()


def next_shard():
    return os.read(reads, 100)


if os.environ["RANK"] == "2":
    next_shard()
while True:
    time.sleep(60)
