import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

os.write(2, bytes(range(256)) * 1000)
os._exit(4)
