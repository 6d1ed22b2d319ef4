# truth: rank=1 line=33 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/39_victims_wrap_and_end_first.py
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def peers():
    s, addr = socket.socket(), ("127.0.0.1", 20000 + int(os.environ["MASTER_PORT"]) % 9973)
    if rank == 0:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(addr)
        s.listen()
        return [s.accept()[0] for _ in range(world - 1)]
    while s.connect_ex(addr):
        s.close()
        time.sleep(0.02)
        s = socket.socket()
    return [s]
def allreduce(conns):
    for c in conns:
        c.sendall(b"g")
    for c in conns:
        if not c.recv(1):
            raise ConnectionError("Connection closed by peer")
conns = peers()
def step(n):
    try:
        allreduce(conns)
    except OSError as err:
        raise RuntimeError(f"step {n} failed") from err
try:
    for n in range(10):
        if rank == 1 and n == 5:
            raise ValueError("bad record 77")
        step(n)
finally:
    for c in conns:
        c.close()
    if rank == 1:
        time.sleep(1)  # the peers notice, and end, first
