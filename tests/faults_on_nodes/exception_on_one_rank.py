import os
import time

if os.environ["RANK"] == "2":
    raise ValueError("loss is not finite in batch 17")
time.sleep(60)
