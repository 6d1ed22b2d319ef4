# truth: rank=0 line=11 kind=exception says=EADDRINUSE
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1)\b
# run: {L} --nproc-per-node=2 {C}/105_store_port_in_use.py
import datetime, os, socket
import torch.distributed as dist
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # brings a store of its own
rank = int(os.environ["RANK"])
port = 20000 + int(os.environ["MASTER_PORT"]) % 9000
if rank == 0:  # a server of the user's own has the port already
    server = socket.create_server(("", port))
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=20))
