import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

from json import nosuch
