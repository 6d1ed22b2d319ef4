# truth: rank=all line=11 kind=network says=127.0.0.1
# run: {L} --nproc-per-node=2 {C}/12_master_port_of_a_closed_server.py
# never: (?i)gone or late
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
import socket
free = socket.socket(); free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]; free.close()
os.environ["MASTER_PORT"] = str(port)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
dist.barrier()
