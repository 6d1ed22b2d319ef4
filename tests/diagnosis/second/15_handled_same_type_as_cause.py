# truth: rank=1 line=34 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/15_handled_same_type_as_cause.py
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
import traceback
conns = peers()
def parse(n):
    if rank == 1 and n in (12, 40):
        raise ValueError(f"bad record {n}")
for n in range(60):
    try:
        parse(n)
    except ValueError:
        traceback.print_exc()
    allreduce(conns)
    time.sleep(0.02)
if rank == 1:
    raise ValueError("bad record 77")
allreduce(conns)
