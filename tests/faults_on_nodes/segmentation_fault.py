import ctypes
import os
import time

if os.environ["RANK"] == "1":
    ctypes.string_at(0)
time.sleep(60)
