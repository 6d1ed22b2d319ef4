# truth: rank=1 line=0 kind=exit says=tokenizer has 32001 entries, the model 32000
# run: {L} --nproc-per-node=2 {C}/61_exit_code_300.py
# also: 44
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 1:
    time.sleep(0.5)
    print("ERROR: tokenizer has 32001 entries, the model 32000", file=sys.stderr)
    sys.exit(300)
time.sleep(300)
