"""The training job of benchmarks.slow_ranks; its argument is a `Case` as JSON."""

import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from relight.worker import progress

STEP_S = 0.2
CHECKPOINT_S, CHECKPOINT_EVERY = 1.0, 100
EVALUATION_S, EVALUATION_EVERY = 3.0, 200


def main() -> None:
    """Train until a signal arrives."""
    case = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    chance = random.Random(case["seed"] * 100 + rank)
    factor = 1 + case["percent"] / 100 if rank in case["slow"] else 1.0
    jitter = case["jitter"] / 100

    def work(seconds: float) -> None:
        time.sleep(seconds * factor * max(0.1, chance.gauss(1, jitter)))

    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    time.sleep(chance.uniform(2, 4))
    if rank == 0:
        print("train", file=sys.stderr, flush=True)
    step = 0
    while True:
        work(STEP_S)
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if case["reports_steps"]:
            progress(step)
        step += 1
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            time.sleep(CHECKPOINT_S)
        if step % EVALUATION_EVERY == 0:
            work(EVALUATION_S)


if __name__ == "__main__":
    main()
