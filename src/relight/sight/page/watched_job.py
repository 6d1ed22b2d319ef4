"""Reads a job for its page: from the sockets of its agents, at most once a second however many
ask.
"""

import threading
import time
from collections.abc import Iterable
from typing import Any

from relight.core.snapshot import ENDED, NodeSnapshot, Output
from relight.core.timeline import Record
from relight.errors import UsageError
from relight.host import agents
from relight.host.run_jobs import JobDirectory
from relight.sight.page.look import Events, Reading, look

_EVERY_S = 0.9
_MOST_RECORDS = 5000
"""Events of a node that its lane is made of."""


class WatchedJob:
    """A job of `relight run` on this machine.

    Args:
        jobs: where jobs of this user are.
        job: its id.
        actions: what the page can do with it.

    Raises:
        UsageError: there is no such job.
    """

    def __init__(self, jobs: JobDirectory, job: str, actions: Iterable[str]) -> None:
        first = jobs.find(job)
        if first is None:
            raise UsageError(f"there is no job {job}", hint="relight list shows what there is")
        self.job = job
        self._jobs, self._actions = jobs, tuple(actions)
        self._lock = threading.Lock()
        self._read_at = -_EVERY_S
        self._records: dict[str, list[Record]] = {}
        self._events = Events()
        self._reading = Reading((first,), (), self._records, None, True, False)
        self._look: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        """Return the job as a JSON object."""
        with self._lock:
            self._read()
            return self._look

    def reading(self) -> Reading:
        """Return all that is known of it."""
        with self._lock:
            self._read()
            return self._reading

    def output(self, rank: int, stream: str) -> str:
        """Return the end of what a rank has printed, as far as its agent has it."""
        for node in self.reading().nodes:
            for each in node.ranks:
                if each.rank == rank:
                    return self._jobs.output(self.job, Output(each.local_rank, stream))
        return ""

    def _read(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= _EVERY_S:
            self._ask()
            self._look = look(self._reading, self._actions) | {"events": self._events.shown()}
            self._read_at = time.monotonic()

    def _ask(self) -> None:
        before = self._reading
        own = before.nodes[0]
        if own.state == ENDED or before.gone:
            return
        found = self._jobs.find(self.job)
        nodes: tuple[NodeSnapshot, ...] = (found,) if found is not None else before.nodes
        gone = found is None and not agents.exists(own.pid)
        self._reading = Reading(nodes, (), self._records, None, found is not None, gone)
