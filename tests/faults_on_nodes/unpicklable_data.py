import os
import pickle
import time

if os.environ["RANK"] == "0":
    pickle.dumps({"schedule": lambda step: 0.1 / (step + 1)})
time.sleep(60)
