# truth: rank=2 line=0 kind=signal says=SIGBUS
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 {C}/59_sigbus_truncated_mmap.py
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
import mmap, tempfile
conns = peers()
f = tempfile.TemporaryFile(dir=".")
f.truncate(1 << 20)
m = mmap.mmap(f.fileno(), 1 << 20)
allreduce(conns)
if rank == 2:
    f.truncate(0)  # somebody else shortens the file
    print(m[5000])
allreduce(conns)
