# truth: rank=1 line=15 kind=hang says=ValueError: bad label 11 in batch 3
# also: ^rank 1 raised
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/145_raised_but_a_thread_runs_on.py
import os, threading, time


def upload():
    while True:
        time.sleep(1)


def step():
    if os.environ["RANK"] == "1":
        threading.Thread(target=upload).start()  # no daemon: Python waits for it
        raise ValueError("bad label 11 in batch 3")
    time.sleep(600)  # as if for rank 1


step()
