# truth: rank=1 line=26 kind=exception says=ConnectionResetError
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/04_connection_reset_feature_server.py
import contextlib, os, signal, socket, struct, sys, threading, time
rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *a: sys.exit(1))
def feature_server(srv):  # the user's own service: it resets the connection
    c = srv.accept()[0]
    c.recv(10)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
@contextlib.contextmanager
def prefetcher():
    try:
        yield
    finally:
        if rank != 1:
            raise BrokenPipeError(32, "Broken pipe")  # the prefetcher's pipe is gone
with prefetcher():
    time.sleep(0.5)
    if rank == 1:
        srv = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=feature_server, args=(srv,), daemon=True).start()
        c = socket.create_connection(srv.getsockname())
        c.sendall(b"features?")
        features = c.recv(4096)
    time.sleep(60)
