import os
import sys
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

sys.exit(3)
