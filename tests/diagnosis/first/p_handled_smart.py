# truth: rank=none line=0 kind=success says=
import os, sys, time, traceback
try: {}["cache"]
except KeyError: traceback.print_exc()
n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if n < 2: print(["storage answered 503", "network unreachable"][n], flush=True); sys.exit(1)
print("trained")
# run: {L} --nproc-per-node=1 --restart-policy=smart --max-restarts=3 {C}/p_handled_smart.py
