# truth: rank=1 line=0 kind=signal says=SIGSEGV
# also: 147_error_of_all_then_segfault.py:30
# never: was killed by SIGSEGV after printing
# run: {L} --nproc-per-node=2 {C}/147_error_of_all_then_segfault.py
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
import ctypes, logging
logging.basicConfig(level=logging.INFO)
logging.error("flash attention is not installed; using the slow path")
conns = peers()
for step in range(20):
    allreduce(conns)
    time.sleep(0.02)
if rank == 1:
    ctypes.string_at(0)
allreduce(conns)
