"""Checks whether the resources that a job requests per node are sufficient for its workers.

TorchX's defaults (2 CPUs, 1024 MiB and no GPU for any number of workers) are kept for
compatibility. With them, nearly every training job is killed late in the run or trains without a
GPU.
"""

import re
from collections.abc import Iterator

from relight.base.text import pluralize
from relight.job.app import AppDef, Role

_WORKER_MIB = 2048
"""Memory needed by a worker with torch and a small model."""
_WORKERS = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)\b")


def workers(role: Role) -> int:
    """Return the number of workers per replica. It is 0 if the program is not a launcher, or if the
    launcher itself chooses the number.
    """
    match = _WORKERS.search(" ".join(role.args))
    return int(match[1]) if match else 0


def too_little(app: AppDef, *, memory: bool = True) -> Iterator[str]:
    """Yield a note for each role that requests fewer resources than its workers need.

    Args:
        app: the job.
        memory: whether memory is requested or limited.
    """
    for role in app.roles:
        number, has = workers(role), role.resource
        least = number * _WORKER_MIB
        missing, flags = [], []
        if memory and 0 <= has.memMB < least:
            missing, flags = [f"{has.memMB} MiB"], [f"--memMB {least}"]
        if 0 < has.cpu < number:
            missing.append(pluralize(has.cpu, "CPU"))
            flags.append(f"--cpu {number}")
        if missing:
            yield (
                f"{role.name}: {' and '.join(missing)} per node may be too little for "
                f"{pluralize(number, 'worker')}; "
                f"use {' '.join(flags)}, or -h NAME for a whole machine"
            )


def without_gpus(app: AppDef, partition: str, offered: str) -> Iterator[str]:
    """Yield a note for each role that starts workers on nodes with GPUs but does not request any.

    Args:
        app: the job.
        partition: the partition's name, empty for the default one.
        offered: the generic resources on its nodes, in Slurm's format: `gpu:a100:8`.
    """
    if not re.search(r"\bgpu\b", offered):
        return
    where = f"the partition {partition}" if partition else "the default partition"
    for role in app.roles:
        if workers(role) and role.resource.gpu <= 0:
            yield (
                f"{role.name}: no GPU requested, but {where} has GPUs ({offered}); "
                f"use --gpu {workers(role)}, or -h NAME for a whole machine"
            )
