import os
import signal
import time

rank = int(os.environ["RANK"])


def meet():
    """Return when all ranks are here."""
    open(f"rank{rank}", "w").close()
    while not all(os.path.exists(f"rank{other}") for other in range(4)):
        time.sleep(0.01)


def stop(*_):
    raise SystemExit("stopped, saved nothing")


signal.signal(signal.SIGTERM, stop)
meet()
if rank == 0:
    raise ValueError("bad batch")
time.sleep(60)
