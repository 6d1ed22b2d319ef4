"""Tracks this process's hold on a registry: until when it is certainly the coordinator, and when it
may evict another holder's record.

This process is the holder (`holds`) until the time `until`, 0 if it is not. The hold begins when
the registry names this process (`held`), and is renewed regularly. It ends when

- the registry names another process,
- the registry does not answer until `until`,
- a node is silent or gone while the registry does not answer (`is_fresh`), or
- too few nodes are left to train, and another holder may reach more (`has_too_few`).

A hold lapses in the registry if it is not renewed within its time to live. This process counts that
time from *before* its request, and subtracts a margin for clocks. So its hold ends before the
registry can name a successor, even if either of them was suspended in between. Workers may still
run on leases that it has granted; the successor continues their generation, or forms another once
those leases are over (core/group/membership).

While the registry does not answer, it can't name a successor, so the holder continues. There is one
exception. A firewall on the holder's own machine may refuse its agents and cut it off from the
registry, and a refused agent may then have evicted it. So a holder that has not reached the
registry for `FRESH_S` ends its hold as soon as a node of its generation is silent or gone.

If the holder refuses a connection, it may have ended, but a firewall may also refuse. So a refusal
counts only at the first address of the record, and only if this process has reached this same
holder before or is on its machine (a loopback address may belong to another machine). Then the
record is evicted, unless the holder renews it while this process watches.

Invariants: `check`.
"""

from typing import NamedTuple

MARGIN_S = 0.5
"""Margin for clocks that run at different speeds, over a time to live."""
FRESH_S = 1.0
"""How long a hold stays fresh after a request that the registry confirmed."""
LATE_S = 2.0
"""Maximum delay with which a registry notices a lapsed hold (etcd checks twice a second)."""
SIGN_OF_LIFE_S = 0.8
"""A holder without a renewal for this time, more than two renewal intervals, may have ended."""


_NOT_URGENT_S = 2.5
"""The same if no workers wait for a new coordinator."""


class Refused(NamedTuple):
    """A connection to the holder was refused. `at_first`: at the first address of its record.
    `is_ours`: the address belongs to this machine. `is_loopback`: it may also belong to another
    machine; `same_host`: the record was written on this host. `here`: workers of its group are on
    this machine.
    """

    revision: str
    at_first: bool
    is_ours: bool
    is_loopback: bool
    same_host: bool
    here: bool


class Candidacy:
    """One process's knowledge of its hold on a registry, and of other holders. Times in seconds.

    Args:
        ttl_s: the time to live of a hold without a renewal.
    """

    def __init__(self, ttl_s: float) -> None:
        self.until = 0.0
        """Until when this process certainly is the holder; 0 if it is not."""
        self.confirmed_at = 0.0
        """When the last confirmed request was sent."""
        self._held_s = ttl_s - MARGIN_S
        self._ttl_s = ttl_s
        self._enough = False
        """Whether enough nodes have reached this holder to train."""
        self._reached = ""
        """The revision of the last holder that was reached."""
        self._refused = ("", 0.0)
        """The revision of the holder that refuses connections, and since when."""

    def held(self, asked_at: float) -> None:
        """Record that the registry named this process in its answer to a request sent at
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
        return now < self.confirmed_at + FRESH_S

    def has_too_few(self, *, enough: bool) -> bool:
        """Record whether enough nodes reach this holder to train; return whether it should end its
        hold in favour of a process that more nodes reach.
        """
        before, self._enough = self._enough, enough
        return before and not enough

    def answered(self, revision: str) -> None:
        """Record that the holder was reached."""
        self._reached = revision

    def patience_s(self, refused: Refused, now: float) -> float | None:
        """Return how long to watch the record before evicting it; None if eviction is unsafe."""
        revision, at_first, is_ours, is_loopback, same_host, here = refused
        if self._refused[0] != revision:
            self._refused = revision, now
        reached = self._reached == revision
        is_evidence = same_host if is_loopback else reached or is_ours
        if not (at_first and is_evidence):
            return None
        return SIGN_OF_LIFE_S if here or is_ours else _NOT_URGENT_S

    def is_alive(self, now: float) -> bool:
        """Return whether a holder that refuses connections is alive, as it renews its record."""
        return now - self._refused[1] > self._ttl_s + LATE_S

    def check(self) -> None:
        """Assert the invariants."""
        assert self.until == 0.0 or self.until == self.confirmed_at + self._held_s
        assert self._held_s < self._ttl_s
