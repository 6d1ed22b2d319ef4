import os
import subprocess
import time

if os.environ["RANK"] == "0":
    subprocess.run(["nvidia-smi-that-is-not-there"], check=True)
time.sleep(60)
