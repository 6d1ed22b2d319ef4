# truth: rank=2 line=34 kind=mismatch says=differed from ranks 0-1 in a collective
# also: Tensor dtypes: Double vs Float
# run: {L} --nproc-per-node=3 {C}/169_another_dtype_in_detail_mode.py
import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
import time
import torch
import torch.distributed as dist


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, v):
        self.sum += v
        self.n += 1

    def tensor(self):
        return torch.tensor([self.sum, self.n], dtype=torch.get_default_dtype())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meter = Meter()
    for step in range(12):
        meter.add(torch.rand(()).item())
        if rank == 2 and step == 7:
            torch.set_default_dtype(torch.float64)  # for a precise quantile
            torch.quantile(torch.rand(100), 0.9)
        total = meter.tensor()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: mean {total[0] / total[1]:.4f}", flush=True)
        time.sleep(0.15)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
