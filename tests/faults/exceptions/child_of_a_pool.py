import os
import time
from concurrent.futures import ProcessPoolExecutor

if os.environ["RANK"] != "1":
    time.sleep(60)


def child():
    raise ValueError("bad row")


if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        pool.submit(child).result()
