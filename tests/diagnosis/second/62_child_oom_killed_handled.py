# truth: rank=1 line=32 kind=exception says=AttributeError: 'NoneType' object has no attribute 'shape'
# never: (?i)rank \d (was|has been|is) killed by (the )?(OOM|kernel)
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/62_child_oom_killed_handled.py
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
import subprocess
conns = peers()
if rank == 0:  # a child is killed; this rank does without
    r = subprocess.run(["sh", "-c", "kill -9 $$"])
    print(f"preprocessor was killed (exit {r.returncode}, out of memory?), using raw images", file=sys.stderr)
for step in range(10):
    allreduce(conns)
    time.sleep(0.05)
if rank == 1:
    batch = None
    print(batch.shape)
allreduce(conns)
