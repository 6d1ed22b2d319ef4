import os
import time

if os.environ["RANK"] in ("1", "3"):
    raise ValueError("gradients exploded")
time.sleep(60)
