# truth: rank=0 line=0 kind=exit says=5
# also: no space on scratch, stopping
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/40_closes_sockets_then_slow_exit5.py
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
conns = peers()
for n in range(6):
    allreduce(conns)
    time.sleep(0.05)
if rank == 0:
    print("no space on scratch, stopping", file=sys.stderr, flush=True)
    [c.close() for c in conns]
    time.sleep(3)
    sys.exit(5)
allreduce(conns)
