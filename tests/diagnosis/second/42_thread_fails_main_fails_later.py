# truth: rank=1 line=28 kind=exception says=OSError: [Errno 5] Input/output error
# also: (?i)queue|Empty|prefetch
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/42_thread_fails_main_fails_later.py
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
import queue, threading
conns = peers()
q = queue.Queue(2)
def prefetch():
    for i in range(100):
        if rank == 1 and i == 5:
            raise OSError(5, "Input/output error", "/data/shard-5")
        q.put(i)
threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
for step in range(100):
    q.get(timeout=3)
    allreduce(conns)
