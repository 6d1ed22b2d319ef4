"""Trains with DDP over gloo until rank 1 kills itself: `survivors_worker.py MODE MEGABYTES STEPS`.

MODE is `plain`, where all ranks start from the checkpoint, or `recoverable`, where the other ranks
keep running. When a file named `kill` appears in the working directory, rank 0 saves the
checkpoint. After STEPS more steps, rank 1 is killed while the others are in the next step. When a
file named `stop` appears, all ranks exit. Each rank prints `<restart> <rank> <pid> <world size>`
after its first step, and after each step it writes `<restart> <step> <monotonic time>` to the file
`rank-N`.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from relight.worker import progress, recoverable
from relight.worker.replicas import Generation

CHECKPOINT = Path("checkpoint.pt")


class Training:
    """The state that survives the failure of another rank."""

    def __init__(self, megabytes: float) -> None:
        self.size = math.isqrt(int(megabytes * 1e6 / 4))
        self.model = torch.nn.Linear(self.size, self.size, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.done = 0
        if CHECKPOINT.exists():
            saved = torch.load(CHECKPOINT, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.done = saved["done"]

    def save(self) -> None:
        """Write the checkpoint."""
        torch.save({"model": self.model.state_dict(), "done": self.done}, CHECKPOINT)


def train(training: Training, generation: Generation | None = None) -> DistributedDataParallel:
    """Train during one generation.

    The wrapper is returned so that it outlives the function. Otherwise, its group would be
    destroyed while this thread holds the GIL, for which gloo's threads may be waiting (torch 2.13).
    """
    dist.init_process_group("gloo")
    if generation is not None:
        training.done = generation.share(training.model, training.optimizer, step=training.done)
    model = DistributedDataParallel(training.model)
    restart, rank, world = (
        os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE")
    )
    inputs, wish = torch.ones(8, training.size), torch.zeros(1)
    with Path(f"rank-{rank}").open("a", buffering=1) as file:

        def note() -> None:
            file.write(f"{restart} {training.done} {time.monotonic()}\n")

        is_first, steps_left = True, int(sys.argv[3])
        while True:
            training.optimizer.zero_grad()
            model(inputs).mean().backward()
            training.optimizer.step()
            training.done += 1
            if generation is not None:
                progress(training.done)
            note()
            if is_first:
                os.write(1, f"{restart} {rank} {os.getpid()} {world}\n".encode())
                is_first = False
            wish.fill_(2 * Path("stop").exists() or Path("kill").exists())
            dist.all_reduce(wish, dist.ReduceOp.MAX)
            if wish == 2:
                break
            if wish == 1 and restart == "0":
                if rank == "0" and steps_left == int(sys.argv[3]):
                    training.save()
                steps_left -= 1
                if steps_left >= 0:
                    continue
                dist.barrier()
                note()
                if rank == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
            else:
                time.sleep(0.02)
    Path(f"over-{rank}").touch()
    while len(list(Path().glob("over-*"))) < int(
        world
    ):  # gloo discards data that an exiting rank has sent
        time.sleep(0.02)
    dist.destroy_process_group()
    return model


def main() -> None:
    """Train."""
    training = Training(float(sys.argv[2]))
    if sys.argv[1] == "plain":
        _ = train(training)
    else:
        _ = recoverable(lambda generation: train(training, generation))()
    os._exit(0)  # shutdown is not measured, and takes a second of CPU time per rank


if __name__ == "__main__":
    main()
