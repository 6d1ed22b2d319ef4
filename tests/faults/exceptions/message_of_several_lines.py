import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

raise RuntimeError("weights do not fit:\n  missing: a\n\n  unexpected: b")
