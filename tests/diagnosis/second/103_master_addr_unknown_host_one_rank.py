# truth: rank=1 line=10 kind=network says=head-node.cluster.invalid
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/103_master_addr_unknown_host_one_rank.py
import datetime, os
import torch.distributed as dist
patience = 20
if os.environ["RANK"] == "1":  # one host has an old profile
    os.environ["MASTER_ADDR"] = "head-node.cluster.invalid"
    patience = 3
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=patience))
dist.barrier()
