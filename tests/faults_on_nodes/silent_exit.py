import os
import time

if os.environ["RANK"] == "1":
    os._exit(7)
time.sleep(60)
