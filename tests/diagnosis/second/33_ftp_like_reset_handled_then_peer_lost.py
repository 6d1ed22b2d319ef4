# truth: rank=2 line=35 kind=exception says=FileNotFoundError
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 {C}/33_ftp_like_reset_handled_then_peer_lost.py
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
import logging
conns = peers()
if rank == 1:  # handled: the mirror resets, another one is used
    try:
        raise ConnectionResetError(104, "Connection reset by peer")
    except OSError:
        logging.exception("mirror 1 failed, trying mirror 2")
for step in range(10):
    allreduce(conns)
    time.sleep(0.05)
if rank == 2:
    open("/nonexistent/epoch1/index.bin")
allreduce(conns)
