import os
import sys
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write('{"message": "E: \\ud800\\u001b[2J\\u202e", "timestamp": 1}')
sys.exit(1)
