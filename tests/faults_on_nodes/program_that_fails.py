import os
import subprocess
import time

if os.environ["RANK"] == "0":
    subprocess.run(["false"], check=True)
time.sleep(60)
