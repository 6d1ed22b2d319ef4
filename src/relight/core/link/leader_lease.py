"""Tracks this process's hold on a registry record. The hold determines how long this process is
certain to be the coordinator, and when the process may evict another holder's record.

This process is the holder (`holds`) until the time `until` (0 if it is not the holder). The hold
begins when the registry names this process (`held`), and is renewed regularly. The hold ends when

- the registry names another process,
- the registry has not replied by the time `until`,
- a node is silent or lost while the registry is not responding (`is_fresh`), or
- too few nodes are left to train, and another holder may be able to reach more of them
  (`has_too_few`).

A hold lapses in the registry if it is not renewed within its time to live. This process counts that
time from *before* it sent the request, and subtracts a margin for clock differences. Therefore its
hold ends before the registry can name a successor, even if this process or the registry was
suspended in between. Workers may still be running on leases that this process has granted. The
successor continues their generation, or forms another one after those leases are over
(core/group/membership).

As long as the registry doesn't respond, it can't name a successor either, so the holder continues.
There is one exception. A firewall on the holder's own machine may reject connections from its
agents and also cut the holder off from the registry. A rejected agent may then have evicted the
holder. Therefore a holder that has not reached the registry for `FRESH_S` ends its hold as soon as
a node in its generation is silent or lost.

If a connection to the holder is refused, the holder may have exited, or a firewall may have
refused it. Therefore a refusal counts only at the first address in the record, and only if this
process has reached the same holder before or is on its machine (a loopback address may belong to a
different machine). The record is then evicted, unless the holder renews it while this process
watches.

The invariants are in `check`.
"""

from typing import NamedTuple

MARGIN_S = 0.5
"""Margin for clocks that run at different speeds during a time to live."""
FRESH_S = 1.0
"""How long a hold stays fresh after the registry has confirmed a request."""
LATE_S = 2.0
"""Maximum time until a registry notices that a hold has lapsed (etcd checks for this twice a
second).
"""
SIGN_OF_LIFE_S = 0.8
"""A holder that has not renewed its record for this long may have exited. The limit is more than
two renewal intervals.
"""


_NOT_URGENT_S = 2.5
"""The limit that is used instead of `SIGN_OF_LIFE_S` if no workers are waiting for a new
coordinator.
"""


class Refused(NamedTuple):
    """A connection to the holder was refused. The `at_first` field is set if this happened at the
    first address in the holder's record. The `is_ours` field is set if the address belongs to this
    machine. The `is_loopback` field is set for a loopback address, possibly another machine's. The
    `same_host` field is set if the record was written on this host. The `here` field is set if
    workers in the holder's group are on this machine.
    """

    revision: str
    at_first: bool
    is_ours: bool
    is_loopback: bool
    same_host: bool
    here: bool


class Candidacy:
    """What one process knows about its hold on a registry record, and about other holders. Times
    are in seconds.

    Args:
        ttl_s: the time to live of a hold that is not renewed.
    """

    def __init__(self, ttl_s: float) -> None:
        self.until = 0.0
        """The time until which this process is certain to be the holder, or 0 if it is not the
        holder.
        """
        self.confirmed_at = 0.0
        """When the most recent confirmed request was sent."""
        self._held_s = ttl_s - MARGIN_S
        self._ttl_s = ttl_s
        self._enough = False
        """Whether enough nodes for training have reached this holder."""
        self._reached = ""
        """The revision of the holder that was reached most recently."""
        self._refused = ("", 0.0)
        """The revision of the holder that refuses connections, and when it started to do so."""

    def held(self, asked_at: float) -> None:
        """Record that the registry named this process in its response to a request sent at
        `asked_at`.
        """
        self.confirmed_at = asked_at
        self.until = asked_at + self._held_s
        self.check()

    def end_hold(self) -> None:
        """Record that this process is no longer the holder."""
        self.until = 0.0
        self._enough = False

    def holds(self, now: float) -> bool:
        """Return whether this process is the holder now."""
        return now < self.until

    def is_fresh(self, now: float) -> bool:
        """Return whether this holder would know if it had been evicted."""
        return now < self.fresh_until()

    def fresh_until(self) -> float:
        """Return when this holder could have been evicted without knowing it."""
        return self.confirmed_at + FRESH_S

    def has_too_few(self, *, enough: bool) -> bool:
        """Record whether this holder has been reached by enough nodes for training. Return whether
        this holder should end its hold in favour of a process that more nodes can reach.
        """
        before, self._enough = self._enough, enough
        return before and not enough

    def answered(self, revision: str) -> None:
        """Record that the holder was reached."""
        self._reached = revision

    def patience_s(self, refused: Refused, now: float) -> float | None:
        """Return how long to watch the record before evicting it, or None if eviction is unsafe."""
        revision, at_first, is_ours, is_loopback, same_host, here = refused
        if self._refused[0] != revision:
            self._refused = revision, now
        reached = self._reached == revision
        is_evidence = same_host if is_loopback else reached or is_ours
        if not (at_first and is_evidence):
            return None
        return SIGN_OF_LIFE_S if here or is_ours else _NOT_URGENT_S

    def is_alive(self, now: float) -> bool:
        """Return whether a holder that refuses connections is alive, judging by its renewals."""
        return now - self._refused[1] > self._ttl_s + LATE_S

    def check(self) -> None:
        """Assert the invariants."""
        assert self.until == 0.0 or self.until == self.confirmed_at + self._held_s
        assert self._held_s < self._ttl_s
