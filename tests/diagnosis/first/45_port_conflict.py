# truth: rank=0 line=9 kind=exception says=EADDRINUSE
# run: python3 -c "import socket,time; s=socket.create_server((str(),29777)); time.sleep(100)" & P=$!; {L} --nproc-per-node=2 {C}/45_port_conflict.py; R=$?; kill $P; exit $R
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
os.environ["MASTER_PORT"] = "29777"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
dist.barrier(); dist.destroy_process_group()
# also: 29777
# never: gone or late
