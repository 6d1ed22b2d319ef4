# truth: rank=1 line=32 kind=exception says=BrokenPipeError
# also: lz5: unknown option -T0
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/29_broken_pipe_to_own_child.py
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
allreduce(conns)
if rank == 1:
    # the compressor ends at once; the pipe to it breaks, the peers are well
    child = subprocess.Popen(["sh", "-c", "echo 'lz5: unknown option -T0' >&2; exit 2"], stdin=subprocess.PIPE, bufsize=0)
    for i in range(50):
        child.stdin.write(b"x" * 1000)
        time.sleep(0.05)
for step in range(50):
    allreduce(conns)
