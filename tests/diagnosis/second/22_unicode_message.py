# truth: rank=1 line=8 kind=exception says=ValueError: Datensatz „Größe“ ungültig
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/22_unicode_message.py
import os, time
rank = int(os.environ["RANK"])
time.sleep(0.5)
if rank == 1:
    raise ValueError("Datensatz „Größe“ ungültig: 文字化け \U0001f525 עברית e\u0301 \u202e \ud800 \x1b[31mred\x1b[0m")
time.sleep(60)
