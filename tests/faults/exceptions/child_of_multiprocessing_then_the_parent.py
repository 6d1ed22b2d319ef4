import multiprocessing
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def child():
    raise ValueError("in the child")


if __name__ == "__main__":
    process = multiprocessing.Process(target=child)
    process.start()
    process.join()
    raise RuntimeError(f"child ended with {process.exitcode}")
