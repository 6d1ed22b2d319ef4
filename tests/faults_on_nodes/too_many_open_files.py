import os
import resource
import time

if os.environ["RANK"] == "2":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    shards = [open(__file__) for _ in range(100)]
time.sleep(60)
