"""How busy the NVIDIA GPUs of this machine are, as `nvidia-smi` tells it."""

import subprocess
from contextlib import suppress
from typing import NamedTuple

_QUERY = "--query-gpu=index,name,utilization.gpu,memory.used,memory.total"
_COMMAND = ("nvidia-smi", _QUERY, "--format=csv,noheader,nounits")
_LIMIT_S, _AFTER_KILL_S = 5.0, 0.5


class Gpu(NamedTuple):
    """A GPU: its number and model, the percentage of the time in which it was busy, and its memory
    in MiB, used and total. None replaces values that the driver withholds, as for MIG partitions.
    """

    number: int
    model: str
    busy: int | None
    used_mib: int | None
    total_mib: int | None


class Gpus:
    """The GPUs of this machine, until `nvidia-smi` fails once: then it is not asked again, because
    with a broken driver each call may hang for ever.
    """

    def __init__(self) -> None:
        self._works = True

    def look(self) -> list[Gpu]:
        """Return the present state of each GPU; an empty list without GPUs or if `nvidia-smi`
        fails.
        """
        text = _output() if self._works else None
        self._works = text is not None
        return _parsed(text or "")


def _output() -> str | None:
    try:
        process = subprocess.Popen(
            _COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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
            values = (int(word) if word.isdecimal() else None for word in words)
            found.append(Gpu(int(number), model, *values))
    return found
