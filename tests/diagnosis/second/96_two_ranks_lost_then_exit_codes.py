# truth: rank=2 line=0 kind=exit says=42
# also: sensor
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# run: {L} --nproc-per-node=3 {C}/96_two_ranks_lost_then_exit_codes.py
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
conns = peers()
try:
    for step in range(9):
        if rank == 2 and step == 4:
            print("sensor of shelf 2 reports 97 degrees: stopping", flush=True)
            os._exit(42)
        allreduce(conns)
        time.sleep(0.05)
except OSError as err:
    print(f"ERROR: rank {rank} failed: {err}", file=sys.stderr)
    sys.exit(1)
