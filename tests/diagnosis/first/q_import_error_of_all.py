# truth: rank=1 line=0 kind=exit says=validation set is empty
# never: raised|probably|workers ran
# run: {L} --nproc-per-node=2 {C}/q_import_error_of_all.py
import os, sys, time, traceback
try:
    import a_module_that_nobody_has
except ImportError:
    traceback.print_exc()
if os.environ["RANK"] == "1":
    while not os.path.exists("rank0"): time.sleep(0.01)
    print("validation set is empty", file=sys.stderr)
    sys.exit(1)
open("rank0", "w").close()
time.sleep(60)
