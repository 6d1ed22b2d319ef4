# truth: rank=1 line=0 kind=exit says=FATAL: dataset /data/x is empty
import os, time, sys
if os.environ["RANK"] == "1":
    print("FATAL: dataset /data/x is empty", *[f"  tried: /data/{c}" for c in "abcdefg"], sep="\n", file=sys.stderr); sys.exit(2)
time.sleep(3)
