# truth: rank=all line=9 kind=network says=29517
# run: {L} --nproc-per-node=2 --hang-timeout=20 {C}/102_master_port_overwritten.py
import datetime, os
import torch.distributed as dist
# left over from the time before torchrun
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["MASTER_PORT"] = "29517"
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
dist.barrier()
