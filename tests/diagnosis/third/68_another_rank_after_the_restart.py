# truth: rank=1 line=11 kind=exception says=KeyError: 'step'
# run: {L} --nproc-per-node=2 --max-restarts=1 {C}/68_another_rank_after_the_restart.py
# never: ^rank 0 raised
import os, sys, time
rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
time.sleep(0.5)
if attempt == 0 and rank == 0:
    raise ValueError("first batch is empty")
if attempt == 1 and rank == 1:
    {}["step"]
time.sleep(300)
