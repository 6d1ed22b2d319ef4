import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

os.dup2(os.open("own.log", os.O_WRONLY | os.O_CREAT), 2)
raise ValueError("in a file")
