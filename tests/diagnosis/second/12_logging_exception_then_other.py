# truth: rank=0 line=30 kind=exception says=ZeroDivisionError: division by zero
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/12_logging_exception_then_other.py
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
import logging
logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
conns = peers()
def cached(name):
    try:
        return open(f"/nonexistent/cache/{name}")
    except FileNotFoundError:
        logging.exception("no cache for %s, computing it", name)
def mean(values):
    return sum(values) / len(values)
for step in range(10):
    cached(f"step{step}") if step % 3 == 0 else None
    allreduce(conns)
    time.sleep(0.1)
if rank == 0:
    mean([])
allreduce(conns)
