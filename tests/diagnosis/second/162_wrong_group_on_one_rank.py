# truth: rank=none line=0 kind=hang says=different calls
# also: rank 3 in broadcast \(162_wrong_group_on_one_rank.py:\d+\), ranks 0-2 in all_reduce
# never: probably rank
# run: {L} --nproc-per-node=4 --hang-timeout 5 {C}/162_wrong_group_on_one_rank.py
import torch
import torch.distributed as dist


class Comm:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # ranks 0..2 train, rank 3 generates the data and joins only at the end
        self.trainers = dist.new_group(list(range(self.world - 1)))

    def mean_over_trainers(self, t, group=None):
        dist.all_reduce(t, group=group or self.trainers)
        return t / (self.world - 1)


def train(comm):
    w = torch.zeros(32)
    for step in range(10):
        g = torch.randn(32)
        if step == 6 and comm.rank == 1:
            # the code path of the gradient-accumulation branch
            w -= comm.mean_over_trainers(g, group=dist.group.WORLD)
        else:
            w -= comm.mean_over_trainers(g)
    return w


def main():
    comm = Comm()
    w = train(comm) if comm.rank < comm.world - 1 else torch.zeros(32)
    dist.broadcast(w, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
