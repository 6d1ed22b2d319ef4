# truth: rank=none line=0 kind=exception says=TimeoutError
# never: (?i)probably rank
import os, sys, time, socket, struct
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def pair():
    addr = ("127.0.0.1", 20000 + int(os.environ["MASTER_PORT"]) % 9973)
    s = socket.socket()
    if rank == 0:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(addr); s.listen()
        return s.accept()[0]
    while s.connect_ex(addr):
        s.close(); time.sleep(0.02); s = socket.socket()
    return s
def load(): time.sleep(30)
c = pair(); c.settimeout(2)
if rank == 0: c.recv(4)
else: load()
