# truth: rank=0 line=0 kind=hang says=different calls
# also: rank 0 was handling IndexError: list index out of range
# run: {L} --nproc-per-node=3 --hang-timeout 5 {C}/167_barrier_while_handling_an_error.py
import torch
import torch.distributed as dist


class DistSession:
    """with DistSession(): ...  -- all ranks leave together"""

    def __enter__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        return self

    def __exit__(self, *exc):
        dist.barrier()
        dist.destroy_process_group()
        return False


SHARDS = ["a.bin", "b.bin", "c.bin"]


def main():
    with DistSession() as s:
        grad = torch.zeros(1000)
        for step in range(30):
            if step == 5:
                name = SHARDS[3 - s.rank]
                grad += len(name)
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        print(s.rank, grad.mean())


main()
