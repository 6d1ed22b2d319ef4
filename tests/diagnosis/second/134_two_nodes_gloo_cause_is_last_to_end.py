# truth: rank=3 line=11 kind=exception says=KeyError: 'label'
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|1|2)\b
# run: bash -c 'P=$((20000+RANDOM%10000)); for i in 0 1; do {L} --nnodes=2 --node-rank=$i --nproc-per-node=2 --rdzv-backend=static --master-addr=127.0.0.1 --master-port=$P {C}/134_two_nodes_gloo_cause_is_last_to_end.py & done; wait'
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
record = {"image": 1} if rank == 3 else {"image": 1, "label": 2}
try:
    dist.all_reduce(torch.ones(4))
    label = record["label"]
    dist.all_reduce(torch.ones(4))
finally:
    if rank == 3:
        dist.destroy_process_group()
        time.sleep(3)
