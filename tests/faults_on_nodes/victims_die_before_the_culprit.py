import os
import time

if os.environ["RANK"] == "1":
    try:
        raise ValueError("bad batch")
    finally:
        time.sleep(0.3)  # closes its connections, and then takes a while to end
raise ConnectionResetError(104, "Connection reset by peer")
