"""Requests flight recorder dumps from torch in hung workers, and reads existing dumps. This module
is loaded only if ranks were waiting for each other.

torch 2.13 writes one file per rank when NCCL's watchdog detects a timeout, or when a dump is
requested. The file's name is a prefix followed by the rank, and its content is a pickle that
consists of dicts, lists, strings and numbers. The file is unpickled without any classes or
functions, and only if it belongs to this user. The time for reading is limited, so that the agent's
heartbeats aren't delayed.
"""

import io
import os
import stat
import time
from collections.abc import Iterable
from typing import NoReturn

from relight.base.env import Environment
from relight.base.fields import Malformed
from relight.core.diagnosis.flight_recorder_text import last_collectives
from relight.core.failure import Collective, Failure
from relight.host import files

DUMPS_S = 15.0
"""The time limit for requested dumps. NCCL polls for requests once per second. It then looks up the
source lines of all collectives, which takes 6 s with torch 2.11.
"""
_MAX_BYTES = 4 << 20
_STOP = b"."
"""The last byte of a pickle."""
_MAX_S = 0.5
"""The time limit for reading all dumps on this node. Reading 2000 entries takes about 20 ms."""


def ask(env: Environment, ranks: Iterable[int]) -> list[int]:
    """Request dumps from workers through the pipes that NCCL reads. The user has to specify the
    name of these pipes with TORCH_NCCL_DEBUG_INFO_PIPE_FILE (torch 2.13, DumpPipe in
    ProcessGroupNCCL.hpp).

    Returns:
        The ranks whose pipes are open for reading.
    """
    stem = env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    return [rank for rank in ranks if stem and _request_dump(f"{stem}{rank}.pipe")]


def have_dumped(env: Environment, ranks: Iterable[int], since: float) -> bool:
    """Return whether each of these ranks has written a complete dump after `since`, in seconds
    since 1970.
    """
    prefixes = _prefixes(env)
    return all(
        any(_content(f"{prefix}{rank}", since, only_end=True) == _STOP for prefix in prefixes)
        for rank in ranks
    )


def _request_dump(path: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False  # the pipe doesn't exist, or no process reads it
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def with_collectives(
    failures: Iterable[Failure], env: Environment, since: float
) -> tuple[Failure, ...]:
    """Return the failures. If there are dumps, each worker's last collective is added to its
    failure.

    Args:
        failures: the failures on this node.
        env: the workers' environment.
        since: the time when the workers' generation began, in seconds since 1970. Older dumps are
            from other workers.
    """
    until = time.monotonic() + _MAX_S
    prefixes = _prefixes(env)
    return tuple(
        each._replace(collectives=_read(prefixes, each.rank, since))
        if time.monotonic() < until
        else each
        for each in failures
    )


def _prefixes(env: Environment) -> list[str]:
    """Return the prefixes of the files that torch may write dumps to. They are at the location that
    the user has configured or, by default, in the user's cache directory (XDG_CACHE_HOME, torch
    2.13) and, for versions before torch 2.9, in /tmp.
    """
    chosen = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if chosen:
        return [chosen]
    home = env.get("HOME") or "/tmp"  # noqa: S108 - as torch does
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]  # noqa: S108


def _read(prefixes: Iterable[str], rank: int, since: float) -> tuple[Collective, ...] | None:
    for prefix in prefixes:
        data = _content(f"{prefix}{rank}", since)
        if data is not None:
            try:
                return last_collectives(_unpickled(data))
            except Malformed:
                continue
    return None


def _content(path: str, since: float, *, only_end: bool = False) -> bytes | None:
    """Return the content of a file, or just its last byte. Return None if the file is too old or
    too large, or belongs to another user.
    """
    try:
        with files.opened(path) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mtime < since:
                return None
            if only_end:
                file.seek(-1, os.SEEK_END)
            elif found.st_size > _MAX_BYTES:
                return None
            return file.read(_MAX_BYTES)
    except (OSError, ValueError):
        return None


def _unpickled(data: bytes) -> object:
    """Load a pickle that consists only of dicts, lists, tuples, strings, bytes and numbers.

    Raises:
        Malformed: if the data contains anything else, or isn't a pickle.
    """
    import pickle  # large and rarely needed; unlike relight's modules, an upgrade can't remove it

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> NoReturn:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a dump")

        def persistent_load(self, pid: object) -> NoReturn:
            raise pickle.UnpicklingError(f"{pid} is not part of a dump")

    try:
        return Unpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError,
        EOFError, ImportError, OverflowError, MemoryError, RecursionError,
    ) as error:  # fmt: skip  # as the documentation of UnpicklingError says
        raise Malformed(f"no dump: {error}") from None
