# truth: rank=1 line=0 kind=exit says=no data in /data/imagenet
# never: raised|probably
# run: {L} --nproc-per-node=2 {C}/q_child_prints_traceback.py
import os, subprocess, sys, time
# The kernels are compiled by another program; there is a fallback in Python.
subprocess.run([sys.executable, "-c", "int('12x')"])
if os.environ["RANK"] == "1":
    sys.exit("no data in /data/imagenet")
time.sleep(60)
