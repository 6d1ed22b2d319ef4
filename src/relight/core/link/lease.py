"""A node's worker lease, which limits how long its workers may run.

A lease begins when the coordinator confirms the workers' generation, either over the agent's
connection or within this process. The lease time counts from the moment when the echoed heartbeat
was *sent*. The coordinator received that heartbeat later, and waits `MARGIN_S` longer than the
lease before it counts a silent node as lost. Therefore the lease expires before the other nodes
continue, even if the process that freezes the workers is late by `MARGIN_S`.

The lease is renewed if

- a heartbeat is echoed over a connection that has confirmed the generation,
- the coordinator is in this process, has confirmed the generation, and is now certain to remain the
  only coordinator until a later time, or
- a connection to the only endpoint is refused on the endpoint's own machine, so that no coordinator
  can have continued.

The lease is not renewed

- by `StopWorkers`, which doesn't confirm the generation, because other nodes may already be running
  the next one,
- by becoming the coordinator's process, because other nodes may have continued before (like any
  other node, this one announces its workers to the group, and whether their lease has expired),
- by a refusal, if the lease has already expired, because other nodes may have continued before the
  coordinator ended, or
- by a refusal, if this node has since reached a coordinator that did not confirm the workers here.

The lease ends `REFUSALS_S` after the first refusal by another machine, unless a coordinator has
confirmed the workers by then. The refusal may come from a firewall that also made the coordinator
assume that this node was lost (docs/decisions/0027).

A coordinator that is still looking for the generation's other nodes renews a lease too, so that the
workers aren't frozen meanwhile. But it doesn't know whether other nodes have continued under a
coordinator between the former one and itself. Several such coordinators in a row could keep two
generations running, so once the lease that the last coordinator of the whole generation granted has
expired, this node announces its workers as if they had been frozen (`may_be_superseded`).

Invariants (`check`): Unless the coordinator is in this process, a lease never ends later than
`lease_s` from now.
"""

from enum import Enum

MARGIN_S = 1.0
"""How many seconds longer than a lease the group waits for a silent node. The process that freezes
the workers may be late by this time.
"""
REFUSALS_S = 5.0
"""How long workers may run while another machine refuses connections. This is long enough to
restart a coordinator.
"""


def lease_s(lost_after_s: float) -> float:
    """Return how long workers may run after an echoed heartbeat, given that a silent node counts as
    lost after `lost_after_s`.
    """
    return lost_after_s - MARGIN_S


class Refusal(Enum):
    """How certain it is that the coordinator has ended if it refuses a connection."""

    NOTHING = "nothing"
    HINT = "no process listens there, unless a firewall sent the refusal"
    PROOF = "no process listens there"


class Lease:
    """The lease for one node's workers.

    Args:
        lease_s: seconds from an echoed heartbeat to the end of the lease.
    """

    def __init__(self, lease_s: float) -> None:
        self.until = float("-inf")
        self._lease_s = lease_s
        self._sure_until = float("-inf")
        """The end of the lease that was granted by the last coordinator of the whole generation."""
        self._recovers = False
        """Whether the coordinator is still looking for the generation's other nodes."""
        self._doubtful = False
        """Whether other nodes may have continued without the workers on this node."""
        self._refused_since: float | None = None
        """When another machine refused a connection for the first time since the last renewal."""
        self._hosted_until = float("-inf")
        """When the coordinator was last known to be in this process."""
        self._confirmed_here = False
        """Whether the coordinator in this process has confirmed the workers on this node."""

    def on_unconfirmed_coordinator(self) -> None:
        """Record that this node reached a coordinator that has yet to confirm the workers."""
        self._doubtful = True

    def may_be_superseded(self, now: float) -> bool:
        """Return whether other nodes may be in a later generation that this node does not know
        about.
        """
        return now >= min(self.until, self._sure_until)

    def confirm(self, echoed_at: float, *, recovers: bool) -> None:
        """Record that the coordinator has confirmed the workers. The most recent echoed heartbeat
        was sent at `echoed_at`. The argument `recovers` means that the coordinator is still looking
        for the generation's other nodes.
        """
        self._doubtful, self._recovers = False, recovers
        self.renew(echoed_at)

    def renew(self, echoed_at: float) -> None:
        """Extend the lease after a heartbeat was echoed over a connection that has confirmed the
        workers. The lease time counts from the moment when that heartbeat was sent.
        """
        self._refused_since = None
        self._extend(echoed_at + self._lease_s)

    def on_refused_connection(self, refusal: Refusal, now: float) -> None:
        """Renew the lease if a refused connection proves that no coordinator can have continued.
        Otherwise make sure that the lease ends in time.
        """
        if refusal is Refusal.PROOF and not self._doubtful and now < self.until:
            self._extend(now + self._lease_s)
        elif refusal is Refusal.HINT:
            if self._refused_since is None:
                self._refused_since = now
            self.until = min(self.until, self._refused_since + REFUSALS_S)

    def begin_hosting(self, until: float) -> None:
        """Record that the coordinator is now in this process, and is certain to stay here until
        `until`. It has yet to confirm the workers.
        """
        self._confirmed_here = False
        self.host(until)

    def host(self, until: float) -> None:
        """Record that the coordinator is certain to be in this process until the time `until`. The
        workers on this node get the same lease as a node that receives a reply from the coordinator
        at that time.
        """
        self._hosted_until, self._refused_since = until, None
        if self._confirmed_here:
            self._extend(until + self._lease_s)

    def confirm_here(self, *, recovers: bool) -> None:
        """Record that the coordinator in this process has confirmed the workers. The argument
        `recovers` has the same meaning as in `confirm`.
        """
        self._confirmed_here, self._doubtful, self._recovers = True, False, recovers
        self._extend(self._hosted_until + self._lease_s)

    def stop_hosting(self, now: float) -> None:
        """Record that the coordinator is no longer in this process. The workers on this node may
        run as long as those on the last node that received a reply from this coordinator.
        """
        if self._confirmed_here:
            self._extend(min(self.until, now + self._lease_s))
        self._confirmed_here = False

    def _extend(self, until: float) -> None:
        self.until = until
        if not self._recovers:
            self._sure_until = until

    def check(self, now: float, *, hosting: bool) -> None:
        """Assert the invariants."""
        assert self.until <= (max(now, self._hosted_until) if hosting else now) + self._lease_s
