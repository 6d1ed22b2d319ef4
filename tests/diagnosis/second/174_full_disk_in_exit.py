# truth: rank=0 line=35 kind=exception says=FloatingPointError: overflow encountered in exp
# also: while handling FloatingPointError
# never: its last traceback
# run: {L} --nproc-per-node=2 {C}/174_full_disk_in_exit.py
import json
import time
import numpy as np
import torch
import torch.distributed as dist

np.seterr(over="raise")


class Recorder:
    """Collects metrics and writes them when the run ends."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def __enter__(self):
        return self

    def add(self, **row):
        self.rows.append(row)

    def __exit__(self, *exc):
        with open(self.path, "w") as f:
            for row in self.rows:
                f.write(json.dumps(row) + "\n")
            f.flush()
        return False


def normalise(x, temperature):
    e = np.exp(x.astype(np.float32) / np.float32(temperature))
    return e / e.sum(-1, keepdims=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = np.random.default_rng(rank)
    temps = [1.0, 0.5, 0.001 if rank == 0 else 0.25, 0.1]
    with Recorder("/dev/full" if rank == 0 else "/dev/null") as rec:
        for step, t in enumerate(temps):
            x = np.abs(rng.normal(size=(8, 10))) + 1.0
            p = torch.from_numpy(normalise(x, t))
            entropy = -(p * p.log()).sum(-1).mean()
            dist.all_reduce(entropy)
            rec.add(step=step, entropy=float(entropy))
            time.sleep(0.4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
