# truth: rank=1 line=0 kind=exit says=accuracy 0.31 is below 0.5, giving up
import os, sys, time, traceback
if os.environ["RANK"] == "1":
    try: {}["cache"]
    except KeyError: traceback.print_exc()          # handled: the cache is rebuilt
    for step in range(int(os.environ.get("STEPS", 5))): print("step", step, flush=True); time.sleep(3 / 50)
    print("accuracy 0.31 is below 0.5, giving up", flush=True); sys.exit(1)
time.sleep(9)
# never: raised KeyError
