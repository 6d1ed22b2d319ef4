"""A worker's view of its job, printed as a line that can be found among other output."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
         "MASTER_ADDR", "MASTER_PORT", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK")  # fmt: skip
SCRIPT = f"""
import os
pairs = [f"{{name}}={{os.environ.get(name)}}" for name in {NAMES!r}]
os.write(1, f"<worker HOST={{os.uname().nodename}} {{' '.join(pairs)}}>\\n".encode())
"""
RELIGHT_RUN = (sys.executable, "-m", "relight", "run")
SHELL = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class Worker(NamedTuple):
    """What one worker saw. `place` is the rank that the cluster assigned to its node."""

    host: str
    rank: int
    world: int
    group_rank: int
    nodes: int
    job: str
    master: str
    place: str


def write(directory: Path) -> None:
    """Write worker.py, which prints its view and exits."""
    (directory / "worker.py").write_text(SCRIPT)


def seen(text: str) -> list[Worker]:
    """Return the workers that have printed their view, by rank."""
    found = []
    for line in re.findall(r"<worker ([^>]*)>", text):
        pairs = dict(part.split("=", 1) for part in line.split())
        place = next((pairs[n] for n in reversed(NAMES[-2:]) if pairs[n] != "None"), "")
        numbers = [int(pairs[name]) for name in NAMES[:4]]
        master = f"{pairs['MASTER_ADDR']}:{pairs['MASTER_PORT']}"
        job = pairs["TORCHELASTIC_RUN_ID"]
        found.append(Worker(pairs["HOST"], *numbers, job, master, place))
    return sorted(found, key=lambda worker: (worker.job, worker.rank))
