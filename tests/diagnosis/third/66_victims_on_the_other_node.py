# truth: rank=0 line=13 kind=exception says=KeyError: 'labels'
# run: bash -c 'for i in 1 2; do {L} --nnodes=2 --nproc-per-node=2 --rdzv-backend=file --rdzv-endpoint=$PWD/meet --rdzv-id=x {C}/66_victims_on_the_other_node.py & done; wait'
# never: ^(?:probably )?ranks? [1-3]
import os, sys, time
rank = int(os.environ["RANK"])
import pathlib, socket
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    pathlib.Path("address.tmp").write_text(str(server.getsockname()[1]))
    os.replace("address.tmp", "address")
    peers = [server.accept()[0] for _ in range(3)]
    time.sleep(1)
    {"input_ids": 1}["labels"]
while not os.path.exists("address"):
    time.sleep(0.05)
link = socket.create_connection(("127.0.0.1", int(pathlib.Path("address").read_text())))
if not link.recv(1):
    raise ConnectionError("parameter server closed the connection")
