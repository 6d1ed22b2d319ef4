import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, rank):
        self.rows = [{"image": torch.rand(4), "caption": i} for i in range(12)]
        if rank == 3:
            del self.rows[7]["caption"]  # one broken row in this rank's shard

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row["image"], row["caption"]


def train():
    loader = DataLoader(Captions(dist.get_rank()), batch_size=2, num_workers=2)
    total = torch.zeros(1)
    for image, caption in loader:
        total += image.sum()
        dist.all_reduce(total)
    return total


dist.init_process_group("gloo")
dist.barrier()
print("sum", train())
dist.destroy_process_group()
