# truth: rank=1 line=0 kind=early says=rank 1
# run: {L} --nproc-per-node=2 {C}/85_early_slow_exit.py
import os, signal, socket, sys, time
rank = int(os.environ["RANK"])
if rank == 1:
    signal.signal(signal.SIGTERM, lambda *_: None) if "--handler" in sys.argv else None
    server = socket.create_server(("127.0.0.1", 4705))
    peer = server.accept()[0]
    time.sleep(0.3); peer.close()               # destroy_process_group()
    time.sleep(1.0); sys.exit(0)                # Python with torch needs a second to shut down
for _ in range(100):
    try: s = socket.create_connection(("127.0.0.1", 4705)); break
    except OSError: time.sleep(0.1)
if s.recv(10) == b"": raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4705")
