# truth: rank=1 line=12 kind=exception says=BrokenPipeError
# run: {L} --nproc-per-node=2 {C}/27_pipe_closed_by_own_head.py
# never: (?i)gone or late
# never: lost (its|the) (peer|connection)
import os, sys, time
rank = int(os.environ["RANK"])
import subprocess
if rank == 1:
    time.sleep(0.5)
    child = subprocess.Popen(["head", "-c", "10"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while True:
        child.stdin.write(b"x" * 65536)
time.sleep(300)
