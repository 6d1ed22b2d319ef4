import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

os.mkdir(os.environ["TORCHELASTIC_ERROR_FILE"])
raise ValueError("bad batch")
