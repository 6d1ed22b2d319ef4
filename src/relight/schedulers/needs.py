"""What a node of a job asks for, and whether its workers can do with it.

TorchX's defaults, 2 CPUs, 1024 MiB and no GPU for however many workers, are kept for parity; they
are too little for nearly every training, which then is killed late, or trains on no GPU.
"""

import re
from collections.abc import Iterator

from relight.job.app import AppDef, Role

_WORKER_MIB = 2048
"""What a worker takes that has imported torch and holds a small model."""
_WORKERS = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)\b")


def workers(role: Role) -> int:
    """Return how many workers a replica starts; 0 if it is no launcher, or decides that itself."""
    match = _WORKERS.search(" ".join(role.args))
    return int(match[1]) if match else 0


def too_little(app: AppDef, *, memory: bool = True) -> Iterator[str]:
    """Say which roles ask for less than their workers take.

    Args:
        app: the job.
        memory: whether it is asked for, or limited, at all.
    """
    for role in app.roles:
        number, has = workers(role), role.resource
        least = number * _WORKER_MIB
        missing, flags = [], []
        if memory and 0 <= has.memMB < least:
            missing, flags = [f"{has.memMB} MiB"], [f"--memMB {least}"]
        if 0 < has.cpu < number:
            missing.append(f"{has.cpu} CPU{'s' if has.cpu > 1 else ''}")
            flags.append(f"--cpu {number}")
        if missing:
            yield (
                f"{role.name}: {' and '.join(missing)} a node for {number} "
                f"worker{'s' if number > 1 else ''} is little; "
                f"{' '.join(flags)} asks for more, or -h NAME for a whole machine"
            )


def without_gpus(app: AppDef, partition: str, offered: str) -> Iterator[str]:
    """Say which roles start workers on nodes with GPUs and ask for none.

    Args:
        app: the job.
        partition: its name, empty for the default one.
        offered: the generic resources of its nodes, as Slurm lists them: `gpu:a100:8`.
    """
    if not re.search(r"\bgpu\b", offered):
        return
    where = f"the partition {partition}" if partition else "the default partition"
    for role in app.roles:
        if workers(role) and role.resource.gpu <= 0:
            yield (
                f"{role.name}: no GPU is asked for, and {where} has some ({offered}); "
                f"--gpu {workers(role)} asks for them, or -h NAME for a whole machine"
            )
