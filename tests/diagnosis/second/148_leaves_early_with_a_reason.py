# truth: rank=2 line=0 kind=early says=2
# also: shard list is exhausted, leaving
# never: number of batches
# run: {L} --nproc-per-node=3 {C}/148_leaves_early_with_a_reason.py
import datetime, logging
import torch, torch.distributed as dist
logging.basicConfig(level=logging.INFO)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
def main():
    for step in range(20):
        if rank == 2 and step == 6:
            logging.info("shard list is exhausted, leaving")
            return
        dist.all_reduce(torch.ones(2))
main()
