# truth: rank=1 line=0 kind=signal says=SIGTERM
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/91_sigterm_by_somebody.py
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def peers():
    s, addr = socket.socket(socket.AF_UNIX), "\0grads-" + os.environ["MASTER_PORT"]
    if rank == 0:
        s.bind(addr)
        s.listen()
        return [s.accept()[0] for _ in range(world - 1)]
    while s.connect_ex(addr):
        time.sleep(0.02)
    return [s]
def allreduce(conns):
    for c in conns:
        c.sendall(b"g")
    for c in conns:
        if not c.recv(1):
            raise ConnectionError("Connection closed by peer")
import subprocess
conns = peers()
if rank == 1:  # not the launcher: somebody outside sends it, to one rank only
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -TERM {os.getpid()}"])
for step in range(60):
    allreduce(conns)
    time.sleep(0.1)
