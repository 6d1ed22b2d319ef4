# truth: rank=0 line=27 kind=exception says=ValueError: bad record 31
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/98_named_rank_is_cleaning_up.py
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
conns = peers()
try:
    for n in range(10):
        for c in conns:
            c.sendall(b"g")
        for c in conns:
            if not c.recv(1):
                raise RuntimeError("rank 0 hung up in step %d" % n)
        if rank == 0 and n == 3:
            raise ValueError("bad record 31")
finally:
    for c in conns:
        c.close()
    if rank == 0:
        time.sleep(2)  # saves a summary
