import os
import time

if os.environ["RANK"] == "0":
    with open("/dev/full", "w") as checkpoint:
        checkpoint.write("weights")
time.sleep(60)
