import os
import signal
import time

signal.signal(signal.SIGTERM, lambda *_: None)
rank = int(os.environ["RANK"])
open(f"ready{rank}", "w").close()
while len([name for name in os.listdir() if name.startswith("ready")]) < 8:
    time.sleep(0.01)
raise ValueError(f"rank {rank} has {rank * 7} bad rows")
