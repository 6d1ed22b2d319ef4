# truth: rank=1 line=49 kind=exception says=EOFError
# also: rank 0 had printed: KeyError: 'part-006'
# never: no other rank had failed
# run: {L} --nproc-per-node=3 {C}/165_server_thread_drops_its_client.py
"""Rank 0 serves shards to the others over a socket of its own."""
import os
import threading
import time
from multiprocessing.connection import Client, Listener

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
ADDR = ("127.0.0.1", 24000 + int(os.environ["MASTER_PORT"]) % 2000)
SHARDS = {f"part-{i:03d}": list(range(i * 10, i * 10 + 10)) for i in range(6)}


def serve_one(conn):
    with conn:
        while True:
            name = conn.recv()
            if name is None:
                return
            conn.send(SHARDS[name])


def serve(listener):
    for _ in range(WORLD - 1):
        threading.Thread(target=serve_one, args=(listener.accept(),), daemon=True).start()


def connect():
    for _ in range(50):
        try:
            return Client(ADDR, authkey=b"x")
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("broker did not come up")


def main():
    if RANK == 0:
        serve(Listener(ADDR, authkey=b"x"))
        time.sleep(8)
        return
    conn = connect()
    seen = 0
    for i in range(RANK - 1, 7, WORLD - 1):
        conn.send(f"part-{i:03d}")
        seen += len(conn.recv())
        time.sleep(0.5)
    conn.send(None)
    time.sleep(5)


if __name__ == "__main__":
    main()
