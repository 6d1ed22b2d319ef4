import os
import shutil
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

shutil.rmtree("logs")
raise ValueError("bad batch")
