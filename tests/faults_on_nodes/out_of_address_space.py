import os
import resource
import time

if os.environ["RANK"] == "2":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    buffer = bytearray(2 << 30)
time.sleep(60)
