# truth: rank=1 line=8 kind=exception says=JSONDecodeError
# run: {L} --nproc-per-node=2 {C}/52_json_with_a_comma.py
# also: line 3 column 2
import os, sys, time
rank = int(os.environ["RANK"])
import json
def config(text):
    return json.loads(text)
if rank == 1:
    time.sleep(0.5)
    config('{"lr": 0.1,\n "steps": 10\n "seed": 1}')
time.sleep(300)
