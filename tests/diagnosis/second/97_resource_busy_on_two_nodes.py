# truth: rank=2 line=31 kind=exception says=Device or resource busy
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1|3)\b
# run: bash -c 'P=$((20000+RANDOM%10000)); for i in 0 1; do {L} --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$P --rdzv-id=job$P {C}/97_resource_busy_on_two_nodes.py & done; wait'
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
import signal
def on_term(signum, frame):
    raise RuntimeError(f"rank {rank} was interrupted while it was saving")
signal.signal(signal.SIGTERM, on_term)
conns = peers()
allreduce(conns)
if rank == 2:
    raise OSError(16, "Device or resource busy", "/dev/accel0")
time.sleep(0.5)
allreduce(conns)
