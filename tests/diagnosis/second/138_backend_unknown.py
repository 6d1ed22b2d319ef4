# truth: rank=all line=4 kind=exception says=glooo
# run: {L} --nproc-per-node=3 {C}/138_backend_unknown.py
import torch.distributed as dist
dist.init_process_group("glooo")
