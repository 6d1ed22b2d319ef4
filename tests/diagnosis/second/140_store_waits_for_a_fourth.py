# truth: rank=all line=9 kind=network says=3/4 clients joined
# run: {L} --nproc-per-node=3 --hang-timeout=15 {C}/140_store_waits_for_a_fourth.py
import datetime, os
import torch.distributed as dist
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # brings a store of its own
rank = int(os.environ["RANK"])
port = 20000 + int(os.environ["MASTER_PORT"]) % 9000
# the world size is written in the script: 4; the launcher starts 3
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4,
                        timeout=datetime.timedelta(seconds=20 if rank else 5))
