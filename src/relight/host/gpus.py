"""How busy the NVIDIA GPUs of this machine are, and what processes use of them, as `nvidia-smi`
tells it.
"""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from relight.host import system

_QUERY = "--query-gpu=index,name,utilization.gpu,memory.used,memory.total"
_IDS = "--query-gpu=uuid,index"
_PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory"
_LIMIT_S, _AFTER_KILL_S = 5.0, 0.5


class Gpu(NamedTuple):
    """A GPU: its number and model, the percentage of the time in which it was busy, and its memory
    in MiB, used and total. None replaces values that the driver withholds, as for MIG partitions.
    `processes` are the pids that compute on it, each with its memory; a container sees none.
    """

    number: int
    model: str
    busy: int | None
    used_mib: int | None
    total_mib: int | None
    processes: tuple[tuple[int, int | None], ...] = ()


class GpuUse(NamedTuple):
    """What a process uses: how busy their GPUs are, as a share, and their memory in bytes."""

    busy: float | None = None
    memory: int | None = None


class Gpus:
    """The GPUs of this machine, until `nvidia-smi` fails once: then it is not asked again, because
    with a broken driver each call may hang for ever.
    """

    def __init__(self) -> None:
        self._works = True
        self._numbers: dict[str, int] = {}
        """The numbers of GPUs by their ids, which `nvidia-smi` names processes by."""

    def look(self) -> list[Gpu]:
        """Return the present state of each GPU; an empty list without GPUs or if `nvidia-smi`
        fails.
        """
        text = _output(_QUERY) if self._works else None
        self._works = text is not None
        gpus = _parsed(text or "")
        processes = _rows(_output(_PROCESSES), 3) if gpus else []
        if processes and not self._numbers:
            self._numbers = {
                uuid: int(number) for uuid, number in _rows(_output(_IDS), 2) if number.isdecimal()
            }
        own: dict[int, list[tuple[int, int | None]]] = {}
        for uuid, pid, mib in processes:
            if uuid in self._numbers and pid.isdecimal():
                using = int(pid), int(mib) if mib.isdecimal() else None
                own.setdefault(self._numbers[uuid], []).append(using)
        return [gpu._replace(processes=tuple(own.get(gpu.number, ()))) for gpu in gpus]


def use_of(gpus: Sequence[Gpu], pid: int) -> GpuUse:
    """Return what a process and its descendants use of these GPUs."""
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
        with suppress(subprocess.TimeoutExpired):  # in the driver, no signal may end it
            process.communicate(timeout=_AFTER_KILL_S)
        return None
    return None if process.returncode else text.decode(errors="replace")


def _parsed(text: str) -> list[Gpu]:
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(", ")
        model, *words = rest.rsplit(", ", 3)
        if number.isdecimal() and len(words) == 3:
            busy, used, total = (int(word) if word.isdecimal() else None for word in words)
            found.append(Gpu(int(number), model, busy, used, total))
    return found


def _rows(text: str | None, size: int) -> list[list[str]]:
    """Return the lines that have `size` values."""
    rows = (line.split(", ") for line in (text or "").splitlines())
    return [row for row in rows if len(row) == size]
