import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5))
dist.all_reduce(torch.ones(1000 if dist.get_rank() == 2 else 4000))
