# truth: rank=0 line=0 kind=signal says=SIGKILL
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/61_sigkill_by_another_process.py
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
if rank == 0:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {os.getpid()}"])
for step in range(200):
    try:
        allreduce(conns)
    except OSError as err:
        raise SystemExit(f"rank {rank}: lost the connection at step {step}: {err}")
    time.sleep(0.05)
