# truth: rank=0 line=0 kind=exit says=7
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/16_handled_on_stdout_then_os_exit7.py
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
try:
    {}["optimizer"]
except KeyError:
    traceback.print_exc(file=sys.stdout)
    print("no optimizer state in the checkpoint, starting afresh", flush=True)
for step in range(10):
    allreduce(conns)
    time.sleep(0.1)
if rank == 0:
    os._exit(7)
allreduce(conns)
