# truth: rank=2 line=30 kind=exception says=ValueError: bad record 77
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1|3)\b
# run: bash -c 'P=$((20000+RANDOM%10000)); for i in 0 1; do {L} --nnodes=2 --node-rank=$i --nproc-per-node=2 --rdzv-backend=static --master-addr=127.0.0.1 --master-port=$P {C}/85_two_nodes_slow_finally.py & done; wait'
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
conns = peers()
try:
    for n in range(10):
        allreduce(conns)
        time.sleep(0.05)
        if rank == 2 and n == 5:
            raise ValueError("bad record 77")
finally:
    for c in conns:
        c.close()
    if rank == 2:
        time.sleep(1)  # all others have ended when the error is printed
