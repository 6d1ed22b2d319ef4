"""Checks whether the resources that a job requests per node are sufficient for its workers, and
whether the user chose an image for a scheduler that ignores it.

For compatibility, the defaults are those of TorchX, which are 2 CPUs, 1024 MiB and no GPU for any
number of workers. With these defaults, nearly every training job trains without a GPU, or is killed
late in the run.
"""

import re
from collections.abc import Iterator

from relight.base.text import pluralize
from relight.job.app import AppDef, Role
from relight.job.components import IMAGE, NO_IMAGE

_WORKER_MIB = 2048
"""The memory that a worker with torch and a small model needs."""
_DEFAULT_IMAGE = IMAGE.partition(":")[0]
_WORKERS = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)\b")


def workers(role: Role) -> int:
    """Return the number of workers per replica. The number is 0 if the program is not a launcher,
    or if the launcher itself chooses the number of workers.
    """
    match = _WORKERS.search(" ".join(role.args))
    return int(match[1]) if match else 0


def too_little(app: AppDef, *, memory: bool = True, gpus: bool = False) -> Iterator[str]:
    """Yield a note for each role that requests fewer resources than its workers need.

    A missing GPU alone causes no note, because a job whose CPUs and memory have been chosen may
    train on CPUs.

    Args:
        app: the job.
        memory: whether the job requests memory or limits it.
        gpus: whether the note also mentions missing GPUs. This is for clusters whose nodes are
            unknown.
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
        if missing and gpus and has.gpu <= 0:
            missing.append("no GPU")
            flags.append(f"--gpu {number}")
        if missing:
            listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
            yield (
                f"{role.name}: {listed} per node may be too little for "
                f"{pluralize(number, 'worker')}; "
                f"use {' '.join(flags)}, or -h NAME for a whole machine"
            )


def ignored_files(app: AppDef, why: str) -> Iterator[str]:
    """Yield notes about mounts and images. This is for schedulers that ignore both.

    Args:
        app: the job.
        why: which files the replicas see instead.
    """
    if any(role.mounts for role in app.roles):
        yield f"mounts have no effect: {why}"
    yield from ignored_images(app, why)


def ignored_images(app: AppDef, why: str) -> Iterator[str]:
    """Yield a note for each image that the user chose. This is for schedulers that ignore images.

    Args:
        app: the job.
        why: why the image has no effect, or what to use instead.
    """
    for image in dict.fromkeys(role.image for role in app.roles):
        if image not in ("", NO_IMAGE) and image.partition(":")[0] != _DEFAULT_IMAGE:
            yield f"the image {image} has no effect: {why}"


def without_gpus(app: AppDef, partition: str, offered: str) -> Iterator[str]:
    """Yield a note for each role that starts workers on nodes with GPUs but does not request any
    GPUs.

    Args:
        app: the job.
        partition: the partition's name, or empty for the default partition.
        offered: the generic resources on the partition's nodes, in Slurm's format, such as
            `gpu:a100:8`.
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
