# truth: rank=1 line=0 kind=signal says=SIGKILL
import os, time, subprocess, sys, signal
if os.environ["RANK"] == "1":
    p = subprocess.run([sys.executable, "-c", "x=[b'x'*(1<<22) for _ in range(200)]"]); print("child:", p.returncode, flush=True)
    time.sleep(6); os.kill(os.getpid(), 9)
time.sleep(12)
# never: rank 1 was killed by SIGKILL: out of memory
