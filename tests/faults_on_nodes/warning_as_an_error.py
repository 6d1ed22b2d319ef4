import os
import time
import warnings

if os.environ["RANK"] == "1":
    warnings.simplefilter("error")
    warnings.warn("lr_scheduler.step() before optimizer.step()", UserWarning, stacklevel=1)
time.sleep(60)
