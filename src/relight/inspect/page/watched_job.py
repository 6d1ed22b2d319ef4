"""Reads a job's state from its agents' sockets for the status page, at most once a second, no
matter how many browsers request it.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from relight.base import fields
from relight.base.errors import EXIT_OK, UsageError
from relight.core.status import timeline
from relight.core.status.node_stacks import numbered
from relight.core.status.rates import Rates
from relight.core.status.snapshot import ENDED, EventsAfter, NodeSnapshot, Output, WholeJob
from relight.core.status.timeline import TimedEvent
from relight.events import event_lines
from relight.inspect.gpus import Gpus, GpuUse, gpu_use
from relight.inspect.page.view_model import Events, Reading, look
from relight.processes import agent_processes
from relight.processes.running_jobs import JobDirectory

_EVERY_S = 0.9
_SHARE = 4.0
"""The minimum interval between two reads, as a multiple of the CPU time that a read takes. Reading
the state of 1,000 ranks takes 0.3 s.
"""
_GPUS_EVERY_S = 3.0
_MAX_RECORDS = 2000
"""How many events to keep per node for its lane. A generation with eight workers has twenty
events.
"""


class WatchedJob:
    """A job that was started with `relight run` on this machine.

    Args:
        jobs: the user's jobs.
        job: the job's id.
        actions: the actions that the page offers.

    Raises:
        UsageError: if the job is unknown.
    """

    def __init__(self, jobs: JobDirectory, job: str, actions: Iterable[str]) -> None:
        first = jobs.find(job)
        if first is None:
            raise UsageError(f"no such job: {job}", hint="see relight list")
        self.job = job
        self._jobs, self._actions = jobs, tuple(actions)
        self._lock = threading.Lock()
        self._next_at = time.monotonic()
        self._events = Events()
        self._nodes: dict[str, _NodeSeen] = {}
        self._rates = Rates()
        self._reading = Reading(
            WholeJob((first,)), self._rates, timeline.history({}, 0.0), answers=True, gone=False
        )
        self._look: dict[str, Any] = {}
        self._gpus = _LatestGpus()
        self._first_steps: dict[str, float] = {}

    def look(self) -> dict[str, Any]:
        """Return the job as a JSON object."""
        with self._lock:
            self._read()
            return self._look

    def reading(self, *, now: bool = False) -> Reading:
        """Return the job's state. If `now` is set, reread it first."""
        with self._lock:
            self._next_at = 0.0 if now else self._next_at
            self._read()
            return self._reading

    def output(self, rank: int, stream: str) -> str:
        """Return as much of a rank's recent output as its agent has kept."""
        for number, node in enumerate(self.reading().job.nodes):
            for each in node.ranks:
                if each.rank == rank:
                    question = Output(each.local_rank, stream, rank)
                    ask = self._jobs.output_elsewhere if number else self._jobs.output
                    return ask(self.job, question)
        return ""

    def _read(self) -> None:
        if time.monotonic() >= self._next_at:
            began = time.thread_time()
            self._query()
            self._look = look(self._reading, self._actions) | {"events": self._events.shown()}
            took = time.thread_time() - began
            self._next_at = time.monotonic() + max(_EVERY_S, _SHARE * took)

    def _query(self) -> None:
        before = self._reading
        own = before.job.nodes[0]
        if self._look and (own.state == ENDED or before.gone):
            return
        is_new = self._query_events()  # first, because the agent may exit
        found = self._jobs.find_whole(self.job)
        gone = found is None and not agent_processes.lives(own.pid)
        job = found or before.job
        if found is not None and found.nodes[0].state == ENDED:
            job = _with_last_snapshots(found.nodes[0], before.job)
        self._rates.take(job.nodes)
        history = before.history
        first_steps = {
            name: node.first_step
            for name, node in zip(numbered(n.host for n in job.nodes), job.nodes, strict=True)
            if node.first_step is not None
        }
        if is_new or first_steps.keys() != self._first_steps.keys():
            records = {name: node.records for name, node in self._nodes.items()}
            history = timeline.history(records, own.started, first_steps)
        self._first_steps = first_steps
        pids = [rank.pid for rank in job.nodes[0].ranks if rank.exitcode is None]
        uses = self._gpus.uses(pids)
        self._reading = Reading(job, self._rates, history, found is not None, gone, uses)

    def _query_events(self) -> bool:
        """Read new events, and return whether there were any."""
        own = self._reading.job.nodes[0]
        number = min((node.number for node in self._nodes.values()), default=0)
        if own.nodes > 1:
            found = self._jobs.events_everywhere(self.job, number)
        else:
            found = [(own.host, list(self._jobs.events(self.job, EventsAfter(number, False))))]
        is_new = False
        for name, (_, lines) in zip(numbered(host for host, _ in found), found, strict=True):
            node = self._nodes.setdefault(name, _NodeSeen())
            for line in node.take(lines):
                self._events.add(name, line)
                is_new = True
        return is_new


class _LatestGpus:
    """The GPU usage of processes, which may be a few seconds old. On some machines a query takes a
    second, so queries run in a thread, and only while a browser is connected.
    """

    def __init__(self) -> None:
        self._gpus, self._uses = Gpus(), dict[int, GpuUse]()
        self._thread: threading.Thread | None = None
        self._next_at = 0.0

    def uses(self, pids: Sequence[int]) -> Mapping[int, GpuUse]:
        """Return the latest known GPU usage. If it is too old, start a new query for these
        processes.
        """
        is_asking = self._thread is not None and self._thread.is_alive()
        if not is_asking and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _GPUS_EVERY_S
            self._thread = threading.Thread(target=self._query, args=(pids,), daemon=True)
            self._thread.start()
        return self._uses

    def _query(self, pids: Sequence[int]) -> None:
        gpus = self._gpus.look()
        self._uses = {pid: gpu_use(gpus, pid) for pid in pids}


class _NodeSeen:
    """The events that have been read from one node."""

    def __init__(self) -> None:
        self.records: list[TimedEvent] = []
        self.number = 0
        """The number of the latest event that was read."""

    def take(self, lines: Iterable[str]) -> Iterator[event_lines.Line]:
        """Record new lines, and yield them."""
        for text in lines:
            line = event_lines.read(text)
            number = fields.decode(text).get("n") if line is not None else None
            if line is None or not isinstance(number, int) or number <= self.number:
                continue
            self.number = number
            event = event_lines.parse_event(line)
            if event is not None:
                self.records.append(TimedEvent(line.time, event, line.t))
            yield line
        del self.records[:-_MAX_RECORDS]


def _with_last_snapshots(own: NodeSnapshot, before: WholeJob) -> WholeJob:
    """Return a job that has ended on this node, with the last snapshots of its other nodes, because
    those are no longer queried. If the job succeeded, all ranks are shown as succeeded. Otherwise,
    the outcome of the ranks on other nodes is unknown.
    """
    ended = EXIT_OK if own.exit_code == EXIT_OK else None
    others = [
        node._replace(
            state=ENDED,
            exit_code=own.exit_code,
            ranks=tuple(
                rank._replace(exitcode=ended if rank.exitcode is None else rank.exitcode)
                for rank in node.ranks
            ),
        )
        for node in before.nodes[1:]
    ]
    return WholeJob((own, *others))
