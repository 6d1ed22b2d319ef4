import os
import subprocess
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

subprocess.run(["sh", "-c", "kill -KILL $PPID"])
time.sleep(60)
