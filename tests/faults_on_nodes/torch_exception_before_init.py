import os

import torch.distributed as dist

if os.environ["RANK"] == "2":
    raise FileNotFoundError(2, "No such file or directory", "/data/vocab.json")
dist.init_process_group("gloo")
