import datetime
import time

import torch
import torch.distributed as dist


def evaluate():
    time.sleep(60)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=3))
if dist.get_rank() == 1:
    evaluate()
dist.all_reduce(torch.ones(4))
