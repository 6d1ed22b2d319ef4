# truth: rank=1 line=0 kind=exit says=validation loss is NaN, giving up
# run: {L} --nproc-per-node=2 {C}/146_reason_after_progress_bar.py
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
for step in range(20):
    bar = "#" * (step // 2)
    sys.stderr.write(f"\rtrain: {step * 5:3d}%|{bar:10}| {step}/20 [00:01<00:03, 9.8it/s, loss=0.{step}]")
    sys.stderr.flush()
    allreduce(conns)
    time.sleep(0.02)
if rank == 1:
    sys.exit("validation loss is NaN, giving up")
allreduce(conns)
