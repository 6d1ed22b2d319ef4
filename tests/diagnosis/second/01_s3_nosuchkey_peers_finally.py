# truth: rank=1 line=27 kind=exception says=NoSuchKey
# also: The specified key does not exist
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/01_s3_nosuchkey_peers_finally.py
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
import signal
class ClientError(Exception):
    pass
def fetch(key):
    time.sleep(0.5)
    raise ClientError(f"An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist. Key: {key}")
signal.signal(signal.SIGTERM, lambda *a: sys.exit(1))
conns = peers()
allreduce(conns)
try:
    if rank == 1:
        fetch("shards/000077.tar")
    time.sleep(60)
finally:
    if rank != 1:
        os.remove(f"/nonexistent/tmp-rank{rank}.lock")  # the cleaning up fails too
