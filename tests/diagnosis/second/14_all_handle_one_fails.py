# truth: rank=2 line=37 kind=exception says=OverflowError: step counter 2147483648 does not fit
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 {C}/14_all_handle_one_fails.py
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def peers():
    s, addr = socket.socket(), ("127.0.0.1", 20000 + int(os.environ["MASTER_PORT"]) % 9973)
    if rank == 0:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(addr)
        s.listen()
        return [s.accept()[0] for _ in range(world - 1)]
    while s.connect_ex(addr):
        s.close()
        time.sleep(0.02)
        s = socket.socket()
    return [s]
def allreduce(conns):
    for c in conns:
        c.sendall(b"g")
    for c in conns:
        if not c.recv(1):
            raise ConnectionError("Connection closed by peer")
import traceback
conns = peers()
def compile_model():
    raise ImportError("libtriton.so: cannot open shared object file")
try:
    compile_model()
except ImportError:
    traceback.print_exc()
    print("WARNING: falling back to eager", file=sys.stderr)
for step in range(10):
    allreduce(conns)
    time.sleep(0.05)
if rank == 2:
    raise OverflowError("step counter 2147483648 does not fit")
allreduce(conns)
