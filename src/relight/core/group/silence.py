"""Silent nodes: how long the group waits for them, and the messages to users.

    HEARD    | nothing was heard of a node for a while, or its connection has ended -> SILENT
    SILENT   | it is heard again                                                    -> HEARD
             | it has been silent for `lost_after_s`                                -> lost
             | something proves that it is gone                                     -> lost

Silence proves nothing: a switch fails over, a virtual machine migrates, a data loader uses every
core. So the group waits for a silent node, and users get a message after a second. All nodes may
fall silent at the same moment, so one line covers many nodes, and a step costs the same for any
number of nodes.
"""

import heapq
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from relight.core.group import group_messages

TELL_AFTER_S = 1.0
"""A shorter silence is not reported and does not explain a failure."""
_TELL_EVERY_S = 1.0
"""Minimum time between two lines. Nodes rarely fall silent at exactly the same moment."""
_AFTERMATH_S = 2.0
"""How long after a silence a worker failure may still be due to it."""


class Silent(NamedTuple):
    """A node that was last heard at `heard_at`. `reason`: why its connection ended, or empty.
    `since`: the time from which the wait for it counts, later than `heard_at` if this process has
    slept since. `began_at`: when its silence began; what this process sleeps through later does not
    change that.
    """

    host: str
    heard_at: float
    reason: str
    since: float = float("-inf")
    began_at: float = float("inf")

    @property
    def tell_at(self) -> float:
        """When to report it to users."""
        return self.since + TELL_AFTER_S


class Silence:
    """The nodes that are silent.

    Args:
        lost_after_s: how long the group waits for a silent node.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._nodes: dict[str, Silent] = {}
        self._lost_at: list[tuple[float, str]] = []  # a heap; may have nodes heard again
        self._untold: dict[str, None] = {}  # in the order in which they fell silent
        self._returned: dict[str, float] = {}  # hosts whose silence was reported, and its length
        self._tell_at = 0.0
        self._awake_at = float("-inf")
        """Until when this process has slept."""
        self._past: list[tuple[str, float, float]] = []
        """The nodes whose silence was long enough to report, with its start and end."""

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def begin(self, node: str, silent: Silent) -> None:
        """Record that a node is silent. If it already was, its connection may have ended since."""
        before = self._nodes.get(node)
        if before is None:
            self._untold[node] = None
            self._wait_for(node, silent)
        else:
            self._nodes[node] = before._replace(reason=silent.reason or before.reason)

    def sleep(self, now: float) -> None:
        """Record that this process has slept until now. That time counts against no node, but each
        one gets at most twice `lost_after_s` in total.
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
        """Record that a node is heard again, or gone."""
        silent = self._nodes.pop(node, None)
        if silent is None:
            return
        if now >= silent.began_at + TELL_AFTER_S:
            self._past.append((node, silent.began_at, now))
            if node not in self._untold:
                self._returned[silent.host] = now - silent.began_at
        self._untold.pop(node, None)

    def forget(self, node: str, now: float) -> None:
        """Record that a node is gone. The reason is reported elsewhere."""
        silent = self._nodes.get(node)
        self.end(node, now)
        if silent is not None:
            self._returned.pop(silent.host, None)

    def begin_generation(self) -> None:
        """Forget silences that ended before this generation."""
        self._past.clear()

    def reason(self, node: str, now: float) -> str:
        """Return why a silent node is lost."""
        silent = self._nodes[node]
        why = f" ({silent.reason})" if silent.reason else ""
        return f"no heartbeat for {now - silent.since:.1f} s{why}"

    def lost(self, now: float) -> list[str]:
        """Return the nodes that have been silent for too long."""
        overdue: dict[str, None] = {}  # the heap may name a node twice
        while self._lost_at and self._lost_at[0][0] <= now:
            lost_at, node = heapq.heappop(self._lost_at)
            if self._is_current(lost_at, node):
                overdue[node] = None
        return list(overdue)

    def lost_at(self, node: str) -> float:
        """Return when a silent node will be lost."""
        return self._nodes[node].since + self._lost_after_s

    def explains(self, failed_at: float, suspects: set[str]) -> bool:
        """Return whether the silence of one of these nodes may explain the failure of a worker that
        blames a peer.
        """
        present = ((node, each.began_at, float("inf")) for node, each in self._nodes.items())
        return any(
            node in suspects and began_at <= failed_at <= until + _AFTERMATH_S
            for node, began_at, until in (*self._past, *present)
        )

    def deadline(self) -> float | None:
        """Return when the next report or loss is due, or None."""
        while self._lost_at and not self._is_current(*self._lost_at[0]):
            heapq.heappop(self._lost_at)
        times = [self._lost_at[0][0]] if self._lost_at else []
        if self._untold:
            first = self._nodes[next(iter(self._untold))]
            times.append(max(self._tell_at, first.tell_at))
        if self._returned:
            times.append(self._tell_at)
        return min(times, default=None)

    def news(self, now: float) -> list[str]:
        """Return the lines for users that are due."""
        if now < self._tell_at:
            return []
        due = list(takewhile(lambda node: now >= self._nodes[node].tell_at, self._untold))
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
            self._tell_at = now + _TELL_EVERY_S
        return lines

    def explain(self, now: float) -> str:
        """Return in words which nodes are silent; empty if no silence is long enough."""
        long = [each for each in self._nodes.values() if now >= each.tell_at]
        if not long:
            return ""
        hosts = [each.host for each in long]
        return group_messages.silent(
            hosts, now - min(each.since for each in long), self._lost_after_s
        )

    def _is_current(self, lost_at: float, node: str) -> bool:
        return node in self._nodes and self.lost_at(node) == lost_at
