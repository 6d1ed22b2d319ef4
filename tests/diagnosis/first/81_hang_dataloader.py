# truth: rank=1 line=11 kind=hang says=rank 1
# run: {L} --nproc-per-node=2 --hang-timeout=12 {C}/81_hang_dataloader.py
# SKIP torchrun
import os, sys, time, datetime
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
class Data(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        if rank == 1 and i == 100: time.sleep(10000)
        return torch.ones(4)
def main():
    dist.init_process_group("gloo")
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
        dist.all_reduce(batch.sum())
if __name__ == "__main__":
    main()
