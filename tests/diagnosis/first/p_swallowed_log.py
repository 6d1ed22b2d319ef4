# truth: rank=1 line=6 kind=exception says=ValueError: bad sample
import os, time, sys, json, traceback
try:
    if os.environ["RANK"] == "1":
        time.sleep(0.2)
        raise ValueError("bad sample")
    time.sleep(3)
except Exception as e:
    print(json.dumps({"level": "ERROR", "msg": "training failed", "exc": traceback.format_exc()}), file=sys.stderr); sys.exit(1)
