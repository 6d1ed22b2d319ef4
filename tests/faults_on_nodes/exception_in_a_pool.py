import os
import time
from concurrent.futures import ThreadPoolExecutor


def tokenize(text):
    return {"a": 1}[text]


if os.environ["RANK"] == "0":
    with ThreadPoolExecutor() as pool:
        list(pool.map(tokenize, ["a", "b"]))
time.sleep(60)
