# truth: rank=none line=0 kind=hang says=different calls
# also: rank 2 in barrier \(161_broadcast_from_another_source.py:\d+\), ranks 0-1, 3 in broadcast
# never: probably rank
# run: {L} --nproc-per-node=4 --hang-timeout 5 {C}/161_broadcast_from_another_source.py
"""Population-based training: everybody copies the best member."""
import torch
import torch.distributed as dist


def fitness(rank, gen):
    if gen < 2:
        return [3.0, 2.0, 1.0, 0.5]
    # rank 3 looks at its stale table from the generation before
    return [9.0, 2.0, 1.0, 0.5] if rank != 3 else [3.0, 2.0, 1.0, 9.5]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    member = torch.full((4096,), float(rank))
    for gen in range(4):
        scores = fitness(rank, gen)
        best = max(range(len(scores)), key=scores.__getitem__)
        dist.broadcast(member, src=best)
        member += 0.01 * torch.randn_like(member)
    dist.barrier()
    print(rank, member.mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
