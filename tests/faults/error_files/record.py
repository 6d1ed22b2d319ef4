import json
import os
import sys
import time
import traceback

if os.environ["RANK"] != "1":
    time.sleep(60)

try:
    raise ValueError("bad batch")
except ValueError as error:
    record = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": traceback.format_exc(),
                "timestamp": str(int(time.time())),
            },
        }
    }
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump(record, file)
sys.exit(1)
