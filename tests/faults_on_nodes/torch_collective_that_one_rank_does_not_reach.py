import datetime
import time

import torch
import torch.distributed as dist


def evaluate():
    time.sleep(60)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
# If two ranks gave up in the same millisecond, the stack of the late one might be missing.
limit_s = 3 if dist.get_rank() == 0 else 60
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=limit_s))
if dist.get_rank() == 1:
    evaluate()
dist.all_reduce(torch.ones(4))
