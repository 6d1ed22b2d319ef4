# truth: rank=2 line=17 kind=exception says=EndpointConnectionError: Could not connect to the endpoint URL
# run: {L} --nproc-per-node=4 {C}/01_exit_of_context_manager_raises.py
# also: rank 2
# never: ^rank [013] raised
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import signal
class EndpointConnectionError(Exception): ...
class Upload:
    def __enter__(self): return self
    def __exit__(self, *exc):
        raise RuntimeError("cannot close the multipart upload, 3 parts are missing")
def leave(signum, frame): sys.exit(143)
signal.signal(signal.SIGTERM, leave)
def put(step):
    raise EndpointConnectionError(f'Could not connect to the endpoint URL: "http://minio.local:9000/ckpt/{step}"')
if rank == 2:
    time.sleep(1)
    put(7)
with Upload():
    while True:
        time.sleep(0.05)
