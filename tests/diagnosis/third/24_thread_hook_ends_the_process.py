# truth: rank=1 line=12 kind=exception says=AssertionError: replica drifted
# run: {L} --nproc-per-node=2 {C}/24_thread_hook_ends_the_process.py
import os, sys, time
rank = int(os.environ["RANK"])
import threading, traceback
def hook(args):
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    sys.stderr.flush()
    os._exit(3)
threading.excepthook = hook
def check():
    assert rank == 0, "replica drifted"
time.sleep(0.5)
threading.Thread(target=check).start()
time.sleep(300)
