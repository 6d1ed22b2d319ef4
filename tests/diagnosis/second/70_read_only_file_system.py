# truth: rank=0 line=24 kind=exception says=Read-only file system
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: unshare -m bash -c "mkdir -p ro.tmp && mount -t tmpfs -o ro none ro.tmp && {L} --nproc-per-node=2 {C}/70_read_only_file_system.py; umount ro.tmp; rmdir ro.tmp"
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
allreduce(conns)
if rank == 0:
    os.makedirs("ro.tmp/runs/exp1", exist_ok=True)
allreduce(conns)
