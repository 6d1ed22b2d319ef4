import os
import time

if os.environ["RANK"] == "3":
    os.abort()
time.sleep(60)
