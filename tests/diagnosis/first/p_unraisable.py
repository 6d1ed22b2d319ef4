# truth: rank=1 line=0 kind=exit says=exited with code 3
import os, time, sys
class A:
    def __del__(self): raise ValueError("in del")
if os.environ["RANK"] == "1":
    a = A(); del a
    sys.exit(3)
time.sleep(3)
# never: raised ValueError
