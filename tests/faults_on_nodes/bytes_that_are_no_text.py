import os
import time

if os.environ["RANK"] == "1":
    b"caf\xe9".decode()
time.sleep(60)
