"""Collects the facts about the end of a generation: why it ends, the order to stop its workers, and
the nodes' reports on them.

If a worker failure and a membership change both happen during a stop, the stop counts as a
membership change. A failure that blames a peer counts as one if that peer was silent at the time.

A node that is not ready although its workers must have exited is dropped. Its connection is closed,
and the other nodes wait until its lease has expired. If a stop takes a long time, all nodes receive
a message that names the nodes that the stop is waiting for.
"""

from collections.abc import Iterable

from relight.core.failure import Failure
from relight.core.group.messages import NodeReady, StopWorkers
from relight.core.group.silence import Silence

_REPORT_AFTER_S = 5.0
"""If a stop takes longer than this, all nodes receive a message that names the nodes that the stop
is waiting for.
"""


class StopOrder:
    """The order to stop all workers, and its deadlines.

    Attributes:
        message: the order sent to the nodes.
        drop_at: when to drop nodes that are not ready, or None for never.
        dropped: the nodes that were dropped.
    """

    def __init__(self, message: StopWorkers, now: float) -> None:
        self.message = message
        self.drop_at: float | None = None
        self.dropped: set[str] = set()
        self._report_at: float | None = now + _REPORT_AFTER_S  # None once that was reported

    def deadlines(self) -> list[float]:
        """Return the pending deadlines."""
        return [at for at in (self._report_at, self.drop_at) if at is not None]

    def wait_for(self, stop_s: float | None, now: float) -> None:
        """Add a node that the stop has to wait for."""
        if stop_s is not None:
            self.drop_at = max(self.drop_at or 0.0, now + stop_s + self.message.limit_s)

    def sleep(self, read_by: float) -> None:
        """Give nodes extra time after this process was suspended."""
        if self.drop_at is not None:
            self.drop_at = max(self.drop_at, read_by)

    def must_report(self, now: float, *, others_wait: bool) -> bool:
        """Return whether to report now which nodes the stop is waiting for. This is only of
        interest if other nodes wait for them.
        """
        if self._report_at is None or now < self._report_at:
            return False
        self._report_at = None if others_wait else now + _REPORT_AFTER_S
        return others_wait

    def must_drop(self, now: float) -> bool:
        """Return whether to drop nodes that are not ready now."""
        if self.drop_at is None or now < self.drop_at:
            return False
        self.drop_at = None
        return True


class WorkerReports:
    """What the nodes of a generation report about their workers.

    Args:
        world_size: the number of workers, or 0 if another coordinator formed the generation.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.progressed: bool | None = None  # None: unknown
        self.failures: list[Failure] = []  # `at` on our clock
        self.waiting: list[Failure] = []  # survivors of a hang
        self.succeeded_ranks: set[int] = set()
        self._reported: set[tuple[int, int, str]] = set()  # the rank, pid and host of each failure

    def add(self, ready: NodeReady, now: float) -> None:
        """Add a node's report."""
        for all_reports, reports in (
            (self.failures, ready.failures),
            (self.waiting, ready.waiting),
        ):
            for failure in reports:
                process = failure.rank, failure.pid, failure.host
                if process not in self._reported:  # a node that was disconnected repeats it
                    self._reported.add(process)
                    all_reports.append(failure._replace(at=failure.at + now))
        self.succeeded_ranks.update(ready.succeeded_ranks)
        if ready.progressed is not None:
            self.progressed = self.progressed or ready.progressed


class Teardown:
    """Why a generation ends, and how far its end has come.

    Attributes:
        cause: the reason for the stop, as shown to users.
        order: set once the nodes were ordered to stop.
        failure_cause: why a worker failed, or empty without a failure.
        failed_host: the host of the failed worker, or of a lost node.
        hung: whether the workers are stopped because they were idle.
        membership_changed: whether a node was lost or admitted during this stop.
        has_lost_node: whether a node was lost.
        addresses: the addresses of all nodes, including those that are gone.
    """

    def __init__(self, cause: str = "", addresses: dict[str, str] | None = None) -> None:
        self.cause = cause
        self.order: StopOrder | None = None
        self.failure_cause = ""
        self.failed_host = ""
        self.hung = False
        self.membership_changed = False
        self.has_lost_node = False
        self.addresses = addresses or {}
        self.blamed_at: float | None = None
        """When a worker failed, if it blames a peer."""
        self._blamed_by = ""  # the node where that worker ran

    def deadlines(self) -> list[float]:
        """Return the pending deadlines of the stop."""
        return [] if self.order is None else self.order.deadlines()

    def has_dropped(self, node: str) -> bool:
        """Return whether a node was dropped during this stop."""
        return self.order is not None and node in self.order.dropped

    def fail(self, cause: str, node: str, now: float, *, suspects_peer: bool) -> None:
        """Record that a worker has failed. Only the first failure counts."""
        if not self.failure_cause:
            self.failure_cause = cause
            if suspects_peer:
                self.blamed_at, self._blamed_by = now, node

    def lose_node(self) -> None:
        """Record that a node was lost."""
        self.membership_changed = self.has_lost_node = True

    def blame_silent_peer(self, failures: Iterable[Failure], silence: Silence) -> None:
        """Count the stop as a membership change if the peer blamed by a failed worker was silent
        when the worker failed. If the worker's error does not name the peer, any silent node
        counts.
        """
        if self.blamed_at is None:
            return
        reports = (failure.report for failure in failures if failure.report is not None)
        text = " ".join(report.message for report in reports)
        named = {node for node, address in self.addresses.items() if address and address in text}
        if silence.explains(self.blamed_at, {*(named or self.addresses), self._blamed_by}):
            self.membership_changed = True  # the failure was a consequence of that
