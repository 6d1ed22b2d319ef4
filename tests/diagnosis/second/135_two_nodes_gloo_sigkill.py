# truth: rank=1 line=0 kind=signal says=SIGKILL
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2|3)\b
# run: bash -c 'P=$((20000+RANDOM%10000)); for i in 0 1; do {L} --nnodes=2 --node-rank=$i --nproc-per-node=2 --rdzv-backend=static --master-addr=127.0.0.1 --master-port=$P {C}/135_two_nodes_gloo_sigkill.py & done; wait'
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
for n in range(10):
    dist.all_reduce(torch.ones(4))
    if rank == 1 and n == 6:
        os.kill(os.getpid(), 9)
