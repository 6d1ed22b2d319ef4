# truth: rank=0 line=29 kind=exception says=FileNotFoundError
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/95_fails_before_peers_connect.py
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
import signal
def gone(signum, frame):
    raise ConnectionError("rank 0 does not listen: connection refused")
signal.signal(signal.SIGTERM, gone)
if rank == 0:
    open("/nonexistent/config.yaml")
conns = peers()
allreduce(conns)
