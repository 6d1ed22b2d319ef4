import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").close()
raise ValueError("bad batch")
