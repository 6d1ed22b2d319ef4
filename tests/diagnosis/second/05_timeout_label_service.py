# truth: rank=0 line=29 kind=exception says=TimeoutError: timed out
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/05_timeout_label_service.py
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
import traceback
def labels():
    srv = socket.create_server(("127.0.0.1", 0))  # accepts, never answers
    c = socket.create_connection(srv.getsockname(), timeout=1.5)
    c.sendall(b"GET labels")
    return c.recv(100)
conns = peers()
try:
    for step in range(5):
        if rank == 0 and step == 3:
            labels()
        allreduce(conns)
except ConnectionError:
    traceback.print_exc()
    print(f"[rank {rank}] FATAL: training failed at step {step}", file=sys.stderr)
    sys.exit(13)
