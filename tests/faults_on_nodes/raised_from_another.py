import os
import time

if os.environ["RANK"] == "2":
    try:
        int("12a")
    except ValueError as error:
        raise RuntimeError("bad line 5 in the config") from error
time.sleep(60)
