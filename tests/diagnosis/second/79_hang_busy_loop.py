# truth: rank=1 line=26 kind=hang says=1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 --hang-timeout=6 {C}/79_hang_busy_loop.py
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
def newton(x):
    while True:
        x = x - (x * x + 1) / (2 * x + 1e-9)  # has no root
        if abs(x * x + 1) < 1e-6:
            return x
conns = peers()
for step in range(10):
    if rank == 1 and step == 2:
        newton(3.0)
    allreduce(conns)
