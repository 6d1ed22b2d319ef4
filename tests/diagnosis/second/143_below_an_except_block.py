# truth: rank=1 line=17 kind=exception says=RedisError: Connection closed by peer
# also: ^rank 1 raised
# never: probably rank 0
# run: {L} --nproc-per-node=2 {C}/143_below_an_except_block.py
import os, time


class RedisError(Exception):
    pass


def preprocess():  # slow, but well
    time.sleep(60)


def download():
    raise RedisError("Connection closed by peer")


def train():
    if os.environ["RANK"] == "1":
        time.sleep(0.5)
        download()
    preprocess()


try:
    open("/nowhere/last.pt")
except FileNotFoundError:
    train()
