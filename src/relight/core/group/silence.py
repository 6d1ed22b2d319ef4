"""Tracks silent nodes and how long the group waits for them, and creates the user messages about
them.

    HEARD    | no heartbeat arrives for a while, or the connection ends -> SILENT
    SILENT   | a message arrives                                        -> HEARD
             | the node has been silent for `lost_after_s`              -> lost
             | something proves that the node is gone                   -> lost

Silence does not prove that a node is lost. A switch may be failing over, a virtual machine may be
migrating, or a data loader may be using every CPU core. Therefore the group waits for a silent
node, and users see a message after a second. All nodes may become silent at the same moment, so one
line covers many nodes, and the cost of a step does not depend on the number of nodes.
"""

import heapq
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from relight.core.group import group_messages

TELL_AFTER_S = 1.0
"""A silence shorter than this is not reported and does not explain a failure."""
_TELL_EVERY_S = 1.0
"""Minimum time between two lines. Nodes rarely become silent at exactly the same moment, so one
line covers those that do so at about the same time.
"""
_AFTERMATH_S = 2.0
"""How long after its end a silence may still be the reason for a worker failure."""


class Silent(NamedTuple):
    """A node whose last message arrived at `heard_at`. The `reason` field says why the node's
    connection ended, and is empty if the connection did not end. The `since` field is the time when
    the group began to wait for the node. It is later than `heard_at` if this process was suspended
    in the meantime. The `began_at` field is the time when the silence began. That time does not
    change if this process is suspended later.
    """

    host: str
    heard_at: float
    reason: str
    since: float = float("-inf")
    began_at: float = float("inf")

    @property
    def report_at(self) -> float:
        """The time at which to report the silence to users."""
        return self.since + TELL_AFTER_S


class Silence:
    """The silent nodes.

    Args:
        lost_after_s: how long the group waits for a silent node.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._nodes: dict[str, Silent] = {}
        self._lost_at: list[tuple[float, str]] = []  # a heap; may contain nodes that have returned
        self._untold: dict[str, None] = {}  # in the order they became silent
        self._returned: dict[str, float] = {}  # hosts with a reported silence, and its length
        self._report_at = 0.0
        self._awake_at = float("-inf")
        """When this process last resumed after a suspension."""
        self._past: list[tuple[str, float, float]] = []
        """The nodes that were silent for long enough to be reported, each with the start and end of
        its silence.
        """

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def besides_suspension(self, awake_by: float) -> list[str]:
        """Return the silent nodes, except for those that only seem silent because this process was
        suspended until after `awake_by`.
        """
        return [
            node
            for node, silent in self._nodes.items()
            if silent.since == silent.heard_at or silent.since <= awake_by
        ]

    def begin(self, node: str, silent: Silent) -> None:
        """Record that a node is silent. If the node was already silent, its connection may have
        ended in the meantime.
        """
        before = self._nodes.get(node)
        if before is None:
            self._untold[node] = None
            self._wait_for(node, silent)
        else:
            self._nodes[node] = before._replace(reason=silent.reason or before.reason)

    def sleep(self, now: float) -> None:
        """Record that this process was suspended until now. The time of the suspension does not
        count as silence for any node, but each node gets at most twice `lost_after_s` in total.
        """
        self._awake_at = now
        for node, silent in self._nodes.items():
            self._wait_for(node, silent)

    def _wait_for(self, node: str, silent: Silent) -> None:
        heard_at = silent.heard_at
        since = max(heard_at, min(self._awake_at, heard_at + self._lost_after_s))
        if since != silent.since:
            began_at = min(silent.began_at, since)
            self._nodes[node] = silent._replace(since=since, began_at=began_at)
            heapq.heappush(self._lost_at, (since + self._lost_after_s, node))

    def end(self, node: str, now: float) -> None:
        """Record that a node is no longer silent, or is lost."""
        silent = self._nodes.pop(node, None)
        if silent is None:
            return
        if now >= silent.began_at + TELL_AFTER_S:
            self._past.append((node, silent.began_at, now))
            if node not in self._untold:
                self._returned[silent.host] = now - silent.began_at
        self._untold.pop(node, None)

    def forget(self, node: str, now: float) -> None:
        """Record that a node is lost. The reason is reported elsewhere."""
        silent = self._nodes.get(node)
        self.end(node, now)
        if silent is not None:
            self._returned.pop(silent.host, None)

    def begin_generation(self) -> None:
        """Forget silences that ended before this generation."""
        self._past.clear()

    def reason(self, node: str, now: float) -> str:
        """Return the reason why a silent node counts as lost."""
        silent = self._nodes[node]
        why = f" ({silent.reason})" if silent.reason else ""
        return f"no heartbeat for {now - silent.since:.1f} s{why}"

    def lost(self, now: float) -> list[str]:
        """Return the nodes that are lost because they have been silent for too long."""
        overdue: dict[str, None] = {}  # the heap may contain a node twice
        while self._lost_at and self._lost_at[0][0] <= now:
            lost_at, node = heapq.heappop(self._lost_at)
            if self._is_current(lost_at, node):
                overdue[node] = None
        return list(overdue)

    def lost_at(self, node: str) -> float:
        """Return the time when a silent node will count as lost."""
        return self._nodes[node].since + self._lost_after_s

    def explains(self, failed_at: float, suspects: set[str]) -> bool:
        """Return whether the silence of one of these nodes may explain why a worker failed and
        blamed a peer.
        """
        present = ((node, each.began_at, float("inf")) for node, each in self._nodes.items())
        return any(
            node in suspects and began_at <= failed_at <= until + _AFTERMATH_S
            for node, began_at, until in (*self._past, *present)
        )

    def deadline(self) -> float | None:
        """Return the time when the next node must be reported or considered lost, or None."""
        while self._lost_at and not self._is_current(*self._lost_at[0]):
            heapq.heappop(self._lost_at)
        times = [self._lost_at[0][0]] if self._lost_at else []
        if self._untold:
            first = self._nodes[next(iter(self._untold))]
            times.append(max(self._report_at, first.report_at))
        if self._returned:
            times.append(self._report_at)
        return min(times, default=None)

    def news(self, now: float) -> list[str]:
        """Return the messages to users that are due now."""
        if now < self._report_at:
            return []
        due = list(takewhile(lambda node: now >= self._nodes[node].report_at, self._untold))
        silent = [self._nodes[node] for node in due]
        lines = []
        if silent:
            for node in due:
                del self._untold[node]
            lines.append(group_messages.silent(
                [each.host for each in silent], now - silent[0].since, self._lost_after_s
            ))  # fmt: skip
        if self._returned:
            lines.append(
                group_messages.heard_again(list(self._returned), max(self._returned.values()))
            )
            self._returned.clear()
        if lines:
            self._report_at = now + _TELL_EVERY_S
        return lines

    def explain(self, now: float) -> str:
        """Describe which nodes are silent. Return an empty string if none has been silent for long
        enough.
        """
        long = [each for each in self._nodes.values() if now >= each.report_at]
        if not long:
            return ""
        hosts = [each.host for each in long]
        return group_messages.silent(
            hosts, now - min(each.since for each in long), self._lost_after_s
        )

    def _is_current(self, lost_at: float, node: str) -> bool:
        return node in self._nodes and self.lost_at(node) == lost_at
