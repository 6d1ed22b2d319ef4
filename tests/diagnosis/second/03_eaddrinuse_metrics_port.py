# truth: rank=1 line=17 kind=exception says=Address already in use
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# never: (?i)MASTER_PORT
# run: {L} --nproc-per-node=2 {C}/03_eaddrinuse_metrics_port.py
import atexit, http.server, os, signal, socket, sys, time
rank = int(os.environ["RANK"])
port = 21000 + int(os.environ["MASTER_PORT"]) % 8000
signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
@atexit.register
def flush():
    if rank == 0:
        raise OSError(9, "Bad file descriptor: metrics were not flushed")
if rank == 1:  # after rank 0
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.1)
# every rank serves its metrics at the same port
metrics = http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler)
time.sleep(60)
