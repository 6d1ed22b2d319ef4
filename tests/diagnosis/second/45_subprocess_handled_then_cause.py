# truth: rank=1 line=31 kind=exception says=RuntimeError: no compiler works
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/45_subprocess_handled_then_cause.py
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
import subprocess
conns = peers()
def build():
    for cc in ("cc1", "cc2"):
        r = subprocess.run(["sh", "-c", f"echo '{cc}: fatal error: no input files' >&2; exit 4"])
        if r.returncode == 0:
            return
    raise RuntimeError("no compiler works")
allreduce(conns)
if rank == 1:
    build()
allreduce(conns)
