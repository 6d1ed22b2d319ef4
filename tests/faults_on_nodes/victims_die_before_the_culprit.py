import os
import signal
import time

rank = int(os.environ["RANK"])


def meet():
    """Return when all ranks are here."""
    open(f"rank{rank}", "w").close()
    while not all(os.path.exists(f"rank{other}") for other in range(4)):
        time.sleep(0.01)


if rank != 1:
    signal.signal(signal.SIGTERM, lambda *_: None)
meet()
if rank == 1:
    try:
        raise ValueError("bad batch")
    finally:
        open("closed", "w").close()
        time.sleep(60)  # closes its connections, and then takes a while to end
while not os.path.exists("closed"):
    time.sleep(0.01)
raise ConnectionResetError(104, "Connection reset by peer")
