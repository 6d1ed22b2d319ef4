# truth: rank=1 line=9 kind=exception says=ValueError: cannot parse the row: 0,1,2
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/21_message_of_200kb.py
import os, time
rank = int(os.environ["RANK"])
row = ",".join(map(str, range(36000)))  # 200 kB in one line
time.sleep(0.5)
if rank == 1:
    raise ValueError("cannot parse the row: " + row)
time.sleep(60)
