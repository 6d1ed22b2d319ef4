# truth: rank=1 line=13 kind=exception says=ImportError: libsndfile
# also: RuntimeError: preprocess of shard 1 failed
# never: rank 1 raised ImportError
# run: {L} --nproc-per-node=2 {C}/158_child_stderr_in_message.py
import os, subprocess, sys, time
rank = int(os.environ["RANK"])
def preprocess(shard):
    code = "def load():\n    raise ImportError('libsndfile.so.1: cannot open shared object file')\nload()"
    if rank == 0:
        code = "pass"
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(f"preprocess of shard {shard} failed with exit code {p.returncode}:\n{p.stderr}")
preprocess(rank)
time.sleep(60)
