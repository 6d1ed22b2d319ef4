# truth: rank=1 line=9 kind=exception says=RuntimeError: worker 3 failed
# also: ZeroDivisionError: division by zero
# run: {L} --nproc-per-node=2 {C}/q_remote_traceback.py
import os, time
REMOTE = '''Traceback (most recent call last):
  File "/srv/serve.py", line 7, in f
    return 1 / 0
ZeroDivisionError: division by zero'''
def fetch(): raise RuntimeError("worker 3 failed:\n" + REMOTE)
if os.environ["RANK"] == "1":
    fetch()
time.sleep(60)
