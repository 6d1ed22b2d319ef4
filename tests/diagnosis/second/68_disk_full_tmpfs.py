# truth: rank=1 line=26 kind=exception says=No space left on device
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: unshare -m bash -c "mkdir -p full.tmp && mount -t tmpfs -o size=2M none full.tmp && {L} --nproc-per-node=2 {C}/68_disk_full_tmpfs.py; umount full.tmp; rmdir full.tmp"
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
for step in range(8):
    allreduce(conns)
    if rank == 1:
        with open(f"full.tmp/ckpt-{step}.bin", "wb") as f:
            f.write(bytes(500_000))
    time.sleep(0.05)
