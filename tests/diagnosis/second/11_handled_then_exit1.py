# truth: rank=1 line=0 kind=exit says=1
# also: accuracy 0\.02 is below the threshold 0\.50
# never: (?i)\b(cause|because|due to|failed with)\b[^\n]{0,40}ConnectionRefusedError
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/11_handled_then_exit1.py
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
if rank == 1:
    try:
        raise ConnectionRefusedError(111, "Connection refused")  # the tracker is down: goes on without
    except OSError:
        traceback.print_exc()
for step in range(20):
    allreduce(conns)
    time.sleep(0.1)
if rank == 1:
    print("accuracy 0.02 is below the threshold 0.50, giving up", flush=True)
    sys.exit(1)
allreduce(conns)
