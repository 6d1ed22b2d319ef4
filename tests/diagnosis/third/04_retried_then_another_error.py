# truth: rank=1 line=21 kind=exception says=IndexError: list index out of range
# run: {L} --nproc-per-node=2 {C}/04_retried_then_another_error.py
# never: cause[^\n]*ConnectionReset
# never: raised ConnectionReset
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import logging
def fetch(n):
    if n < 2:
        raise ConnectionResetError(104, "Connection reset by peer")
    return [1, 2]
if rank == 1:
    for attempt in range(3):
        try:
            rows = fetch(attempt)
        except OSError:
            logging.exception("fetch failed, attempt %d", attempt)
            time.sleep(0.5)
    time.sleep(1)
    print(rows[2])
time.sleep(300)
