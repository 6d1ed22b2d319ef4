# truth: rank=1 line=40 kind=exception says=TypeError: unsupported operand
# never: (?i)(ran|run|was|is) out of (GPU |CUDA )?memory
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/17_oom_handled_then_typeerror.py
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
class OutOfMemoryError(RuntimeError): ...
conns = peers()
def forward(batch):
    if batch > 16:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity)")
batch = 64
while True:
    try:
        forward(batch)
        break
    except OutOfMemoryError:
        batch //= 2
        logging.exception("out of memory, trying batch size %d", batch)
for step in range(10):
    allreduce(conns)
    time.sleep(0.1)
total = None if rank == 1 else 0
total = total + 1
allreduce(conns)
