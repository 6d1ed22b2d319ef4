# truth: rank=3 line=11 kind=exception says=corrupt record 77
# run: {L} --nproc-per-node=4 {C}/83_wrapped_victims.py
import os, socket, time
rank = int(os.environ["RANK"])
if rank == 3:
    server = socket.create_server(("127.0.0.1", 4703))
    peers = [server.accept()[0] for _ in range(3)]
    for p in peers: p.sendall(b"go")
    time.sleep(0.5)
    try:
        raise ValueError("corrupt record 77")
    finally:
        for p in peers: p.close()          # destroy_process_group()
        time.sleep(3)                      # wandb.finish()
for _ in range(100):
    try: s = socket.create_connection(("127.0.0.1", 4703)); break
    except OSError: time.sleep(0.1)
def all_reduce():
    s.recv(2)
    if s.recv(10) == b"": raise ConnectionResetError("Connection closed by peer")
try: all_reduce()
except OSError as error: raise RuntimeError("step 5 failed") from error
