# truth: rank=1 line=17 kind=exception says=Address already in use
# run: {L} --nproc-per-node=2 {C}/10_metrics_port_taken_by_peer.py
# never: (?i)gone or late
# never: rank 0 raised
import os, sys, time
rank = int(os.environ["RANK"])
import http.server, pathlib
mark = pathlib.Path("port")
if rank == 0:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    pathlib.Path("port.tmp").write_text(str(server.server_port))
    os.replace("port.tmp", mark)
else:
    while not mark.exists():
        time.sleep(0.05)
    time.sleep(0.5)
    http.server.HTTPServer(("127.0.0.1", int(mark.read_text())), http.server.BaseHTTPRequestHandler)
time.sleep(300)
