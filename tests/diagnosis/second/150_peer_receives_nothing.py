# truth: rank=1 line=0 kind=exception says=ValueError: bad gradient
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
c = pair()
if rank == 0:
    while True:
        (n,) = struct.unpack("!I", c.recv(4))
        c.sendall(b"okok")
else:
    try:
        for n in range(30):
            c.sendall(struct.pack("!I", n)); c.recv(4)
            if n == 9: raise ValueError("bad gradient")
    finally:
        c.close(); time.sleep(1)
