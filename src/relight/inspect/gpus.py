"""Reports how busy this machine's NVIDIA GPUs are and which processes are using them, according to
`nvidia-smi`.
"""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from relight.host import system

_QUERY = "--query-gpu=uuid,index,name,utilization.gpu,memory.used,memory.total"
_PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory"
_LIMIT_S, _AFTER_KILL_S = 5.0, 0.5


class Gpu(NamedTuple):
    """One GPU, with its number, model, utilization in percent, and used and total memory in MiB.

    A value is None if the driver does not report it, as with MIG partitions.
    The `processes` field maps the pids of processes that compute on the GPU to the GPU memory that
    they use. In a container, `processes` is empty.
    """

    number: int
    model: str
    busy: int | None
    used_mib: int | None
    total_mib: int | None
    processes: tuple[tuple[int, int | None], ...] = ()


class GpuUse(NamedTuple):
    """A process's GPU usage: the utilization of its GPUs as a fraction, and the GPU memory that it
    uses in bytes.
    """

    busy: float | None = None
    memory: int | None = None


class Gpus:
    """Queries the state of this machine's GPUs.

    Once `nvidia-smi` has failed, it is not run again, because each call may hang forever if the
    driver is broken.
    """

    def __init__(self) -> None:
        self._works = True

    def look(self) -> list[Gpu]:
        """Return the current state of each GPU. The result is empty on a machine without GPUs or if
        `nvidia-smi` fails.
        """
        text = _output(_QUERY) if self._works else None
        self._works = text is not None
        gpus = _parsed(text or "")
        own: dict[str, list[tuple[int, int | None]]] = {}
        for line in (_output(_PROCESSES) or "").splitlines() if gpus else ():
            uuid, pid, mib = (*line.split(", "), "", "")[:3]
            if pid.isdecimal():
                own.setdefault(uuid, []).append((int(pid), int(mib) if mib.isdecimal() else None))
        return [gpu._replace(processes=tuple(own.get(uuid, ()))) for uuid, gpu in gpus]


def gpu_use(gpus: Sequence[Gpu], pid: int) -> GpuUse:
    """Return how much of these GPUs a process and its descendants use."""
    using = [gpu for gpu in gpus if gpu.processes]
    pids = {pid, *system.tree(pid)} if using else set()
    busy, memory = list[int](), list[int]()
    for gpu in using:
        own = [mib for pid, mib in gpu.processes if pid in pids]
        if own:
            busy += [] if gpu.busy is None else [gpu.busy]
            memory += [mib << 20 for mib in own if mib is not None]
    return GpuUse(sum(busy) / len(busy) / 100 if busy else None, sum(memory) if memory else None)


def _output(query: str) -> str | None:
    command = ("nvidia-smi", query, "--format=csv,noheader,nounits")
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # signals can't end a driver call
            process.communicate(timeout=_AFTER_KILL_S)
        return None
    return None if process.returncode else text.decode(errors="replace")


def _parsed(text: str) -> list[tuple[str, Gpu]]:
    """Return each GPU with its id, by which `nvidia-smi` lists the processes."""
    found = []
    for line in text.splitlines():
        uuid, number, rest = (*line.split(", ", 2), "", "")[:3]
        model, *words = rest.rsplit(", ", 3)
        if number.isdecimal() and len(words) == 3:
            busy, used, total = (int(word) if word.isdecimal() else None for word in words)
            found.append((uuid, Gpu(int(number), model, busy, used, total)))
    return found
