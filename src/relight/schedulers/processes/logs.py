"""Reads a replica's output lines, and waits for new lines."""

import os
import select
import time
from collections.abc import Iterator

from relight.base.errors import MachineError
from relight.host import tail
from relight.schedulers.api import LogQuery
from relight.schedulers.processes.record import LocalRecord

_POLL_S = 0.25
_CHECK_S = 3.0
"""Polling interval. Even with inotify, polling is needed to notice killed executors."""


def lines(record: LocalRecord, path: str, query: LogQuery) -> Iterator[str]:
    """Yield the lines in a log file. With `follow`, keep yielding new lines until the replica has
    finished.
    """
    # The watch is created before anything is read, so that no later change is missed.
    watch = _watch(path, record.directory) if query.follow else -1
    try:
        if not os.path.exists(path):
            raise MachineError(f"logs no longer exist: {path}")
        yield from tail.lines(
            lambda: [path],
            lambda: query.follow and not _is_over(record, query),
            lambda: _wait_for_more(watch),
        )
    finally:
        if watch >= 0:
            os.close(watch)


def _is_over(record: LocalRecord, query: LogQuery) -> bool:
    """Return whether the replica will not write any more output. A replica that has finished may
    still be retried.
    """
    state = record.latest()
    if state is None or state["state"] != "RUNNING":
        return True
    replica = next(
        r for r in state["replicas"] if (r["role"], r["replica"]) == (query.role, query.replica)
    )
    return bool(replica["state"] == "SUCCEEDED")


def _watch(path: str, directory: str) -> int:
    """Return a descriptor that becomes readable when a file grows, or when a file in a directory is
    replaced. Return -1 if the system does not support this.
    """
    from relight.host import system

    return system.inotify_open((path, system.IN_MODIFY), (directory, system.IN_MOVED_TO))


def _wait_for_more(watch: int) -> None:
    """Wait until a file changes or the next periodic check is due."""
    if watch < 0:
        time.sleep(_POLL_S)
        return
    poll = select.poll()  # select can't handle more than 1024 open files
    poll.register(watch, select.POLLIN)
    if poll.poll(_CHECK_S * 1000):
        os.read(watch, 65536)
