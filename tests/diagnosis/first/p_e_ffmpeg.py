# truth: rank=1 line=5 kind=exception says=BrokenPipeError
import os, time, subprocess
if os.environ["RANK"] == "1":
    p = subprocess.Popen(["false"], stdin=subprocess.PIPE); time.sleep(0.5)
    p.stdin.write(b"x" * 100000); p.stdin.flush()
time.sleep(3)
# never: gone or late
# never: another rank
