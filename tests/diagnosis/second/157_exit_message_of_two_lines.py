# truth: rank=1 line=0 kind=exit says=config and checkpoint disagree: 12 vs 16 heads
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank 0\b
# run: {L} --nproc-per-node=2 {C}/157_exit_message_of_two_lines.py
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("config and checkpoint disagree: 12 vs 16 heads\n(set --heads or delete the checkpoint)")
time.sleep(30)
