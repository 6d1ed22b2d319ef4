# truth: rank=1 line=14 kind=exception says=KeyError: 'val/acc_top1'
# never: ranks 0-1
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank 0\b
# run: {L} --nproc-per-node=2 {C}/154_cleanup_of_all_ranks_fails.py
import torch, torch.distributed as dist
class Trainer:
    writer = None
    def fit(self):
        try:
            for epoch in range(3):
                metrics = {"val/loss": torch.ones(1)}
                dist.all_reduce(metrics["val/loss"])
                if dist.get_rank() == 1 and epoch == 2:
                    best = metrics["val/acc_top1"]
            dist.barrier()
        finally:
            self.writer.close()
dist.init_process_group("gloo")
Trainer().fit()
