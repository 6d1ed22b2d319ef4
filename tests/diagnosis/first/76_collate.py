# truth: rank=1 line=12 kind=exception says=stack expects each tensor to be equal size
# run: {L} --nproc-per-node=2 {C}/76_collate.py
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.ones(5 if rank == 1 and i == 10 else 4)
def main():
    dist.init_process_group("gloo")
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
        dist.all_reduce(batch.sum())
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
