# truth: rank=2 line=23 kind=exception says=Error 111 connecting to 127.0.0.1:
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1)\b
# never: (?i)rank 2[^\n]*lost (its|the) (peer|connection to rank)
# run: {L} --nproc-per-node=3 {C}/02_redis_refused_peers_sigterm_handler.py
import os, signal, socket, time
rank = int(os.environ["RANK"])
class RedisError(Exception): ...
class ConnectionError(RedisError): ...
def on_term(signum, frame):
    raise RuntimeError(f"interrupted by signal {signum}, checkpoint is incomplete")
signal.signal(signal.SIGTERM, on_term)
class Redis:
    def __init__(self, host, port):
        try:
            self.sock = socket.create_connection((host, port), timeout=2)
        except OSError as e:
            raise ConnectionError(f"Error {e.errno} connecting to {host}:{port}. {e.strerror}.") from e
with socket.socket() as s:  # a port that nobody listens on
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
time.sleep(0.5)
if rank == 2:
    queue = Redis("127.0.0.1", port)
time.sleep(60)
