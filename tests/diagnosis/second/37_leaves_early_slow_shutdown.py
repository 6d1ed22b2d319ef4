# truth: rank=1 line=0 kind=early says=1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/37_leaves_early_slow_shutdown.py
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
import atexit
conns = peers()
for step in range(5 if rank == 1 else 8):
    allreduce(conns)
    time.sleep(0.1)
if rank == 1:
    atexit.register(time.sleep, 4)  # uploads its logs long after the sockets are closed
    for c in conns:
        c.close()
