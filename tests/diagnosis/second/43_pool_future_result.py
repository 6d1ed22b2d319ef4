# truth: rank=0 line=25 kind=exception says=PermissionError: [Errno 1] Operation not permitted
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/43_pool_future_result.py
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
from concurrent.futures import ThreadPoolExecutor
conns = peers()
def save(step):
    if rank == 0 and step == 4:
        raise PermissionError(1, "Operation not permitted", "ckpt-4.pt")
    time.sleep(0.05)
pool = ThreadPoolExecutor(1)
pending = None
for step in range(20):
    if pending:
        pending.result()
    pending = pool.submit(save, step)
    allreduce(conns)
