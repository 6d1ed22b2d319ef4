import os
import time

if os.environ["RANK"] == "3":
    raise RuntimeError("bad batch:\n  sample 3 has no label\n  sample 9 has no label")
time.sleep(60)
