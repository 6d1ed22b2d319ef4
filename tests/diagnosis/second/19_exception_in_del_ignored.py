# truth: rank=1 line=29 kind=exception says=RuntimeError: schedule ended at step 8
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/19_exception_in_del_ignored.py
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
class Reader:
    def __del__(self):
        raise OSError("reader was closed twice")  # Python prints it and goes on
conns = peers()
for step in range(9):
    Reader()
    allreduce(conns)
if rank == 1:
    raise RuntimeError("schedule ended at step 8")
allreduce(conns)
