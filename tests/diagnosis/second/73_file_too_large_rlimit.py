# truth: rank=1 line=28 kind=exception says=File too large
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/73_file_too_large_rlimit.py
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
import resource, tempfile
conns = peers()
allreduce(conns)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with tempfile.TemporaryFile(dir=".", buffering=0) as f:
        for i in range(20):
            f.write(bytes(30_000))
allreduce(conns)
