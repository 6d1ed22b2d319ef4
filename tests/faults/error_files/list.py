import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write("[1]")
raise ValueError("bad batch")
