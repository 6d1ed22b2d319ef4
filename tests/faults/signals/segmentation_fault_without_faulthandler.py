import ctypes
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

ctypes.string_at(0)
