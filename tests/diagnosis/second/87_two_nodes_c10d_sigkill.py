# truth: rank=3 line=0 kind=signal says=SIGKILL
# run: bash -c 'P=$((20000+RANDOM%10000)); for i in 0 1; do {L} --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$P --rdzv-id=job$P {C}/87_two_nodes_c10d_sigkill.py & done; wait'
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
for step in range(30):
    allreduce(conns)
    time.sleep(0.1)
    if rank == 3 and step == 8:
        os.kill(os.getpid(), 9)
