# truth: rank=all line=8 kind=network says=default_pg
# also: (?i)world.?size|WORLD_SIZE|rank 3|4 ranks|\bof 4\b|0/3
# run: {L} --nproc-per-node=3 --hang-timeout=15 {C}/104_wrong_world_size.py
import datetime, os
import torch.distributed as dist
# the script asks for 4 ranks, the launcher starts 3
os.environ["WORLD_SIZE"] = "4"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
dist.barrier()
