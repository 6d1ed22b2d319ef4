# truth: rank=0 line=24 kind=exception says=Disk quota exceeded
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/72_quota_exceeded.py
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
import errno
def save(step):
    if step == 4:  # what a file system with quotas says
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), f"/home/u/ckpt-{step}.pt")
conns = peers()
for step in range(9):
    allreduce(conns)
    try:
        if rank == 0:
            save(step)
    except OSError as err:
        print("could not save:", err)
        raise
