import time

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(60)


dist.init_process_group("gloo")
if dist.get_rank() == 1:
    for _ in DataLoader(Rows(), num_workers=1, timeout=2):
        pass
dist.barrier()
