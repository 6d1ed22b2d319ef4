import os
import pickle
import time


def save(step):
    with open(f"/nonexistent/ckpt/{step}.pt", "wb") as file:
        pickle.dump({"step": step}, file)


if os.environ["RANK"] == "0":
    save(100)
time.sleep(60)
