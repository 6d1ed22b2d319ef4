# truth: rank=1 line=0 kind=exit says=1
# also: ERROR: tokenizer files are corrupt
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/18_handled_on_one_rank_other_exits.py
import os, sys, time, traceback
rank = int(os.environ["RANK"])
if rank == 0:
    try:
        int("12 apples")
    except ValueError:
        traceback.print_exc()
    time.sleep(60)
time.sleep(1.5)
print("ERROR: tokenizer files are corrupt")
sys.exit(1)
