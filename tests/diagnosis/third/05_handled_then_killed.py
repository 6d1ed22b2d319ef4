# truth: rank=0 line=0 kind=signal says=SIGKILL
# run: {L} --nproc-per-node=2 {C}/05_handled_then_killed.py
# also: rank 0
# never: rank 0 raised
# never: (?i)out of memory\b(?!.*(no|not|none))
import os, sys, time
rank = int(os.environ["RANK"])
import traceback, signal
if rank == 0:
    try:
        {}["cache"]
    except KeyError:
        traceback.print_exc()
    time.sleep(3)
    print("step 12: loss 0.7", flush=True)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(300)
