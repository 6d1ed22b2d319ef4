"""The lease of a node's workers: until when they may run.

A lease begins when the coordinator confirms the workers' generation, over the connection to it or
in this process. It is counted from when the echoed heartbeat was *sent*. The coordinator received
that heartbeat later, and waits for longer than a lease, by a margin for clocks, before it counts
the node as lost. So the lease is over before the other nodes go on.

The lease is renewed if

- a heartbeat is echoed over a connection that has confirmed the generation,
- the coordinator is in this process, has confirmed the generation, and is certain to be the only
  one for longer,
- a connection to the coordinator is refused in a way that shows that it has ended and has no
  successor; a refusal by another machine may come from a firewall, so it counts only for
  `REFUSALS_S` after the last echo, or
- this process becomes the host of the only endpoint: no other node can have gone on without it.

It is not renewed

- by `StopWorkers`, which is no confirmation: other nodes may already run the next generation,
- by a refusal or by hosting, if the lease is over: other nodes may have gone on before the
  coordinator ended, or
- by a refusal or by hosting, if this node has since reached a coordinator that did not confirm the
  workers here.

Invariants (`check`): unless the coordinator is in this process, a lease never ends later than
`lease_s` from now.
"""

from enum import Enum

from relight.core.supervision import FOR_EVER

REFUSALS_S = 5.0
"""How long a refused connection counts: long enough to start a coordinator again."""


class Refusal(Enum):
    """How certainly a refused connection shows that the coordinator has ended."""

    NOTHING = "nothing"
    HINT = "no process listens there, unless a firewall sent the refusal"
    PROOF = "no process listens there"


class Lease:
    """The lease of one node's workers.

    Args:
        lease_s: seconds from a heartbeat that is echoed to the end of the lease.
    """

    def __init__(self, lease_s: float) -> None:
        self.until = float("-inf")
        self._lease_s = lease_s
        self._doubtful = False
        """Whether other nodes may have gone on without the workers here."""
        self._hosted_until = float("-inf")
        """Until when the coordinator was certainly in this process."""
        self._confirmed_here = False
        """Whether the coordinator in this process has confirmed the workers here."""

    def on_unconfirmed_coordinator(self) -> None:
        """Note that this node has reached a coordinator that has not confirmed the workers yet."""
        self._doubtful = True

    def confirm(self, echoed_at: float) -> None:
        """Note that the coordinator has confirmed the workers; the last heartbeat that was echoed
        was sent at `echoed_at`.
        """
        self._doubtful = False
        self.renew(echoed_at)

    def renew(self, echoed_at: float) -> None:
        """Count from the last heartbeat that was echoed, over a connection that has confirmed the
        workers.
        """
        self.until = echoed_at + self._lease_s

    def on_refused_connection(self, refusal: Refusal, echoed_at: float, now: float) -> None:
        """Renew the lease if a refused connection shows that no coordinator can have gone on."""
        believed = refusal is Refusal.PROOF or (
            refusal is Refusal.HINT and now < echoed_at + REFUSALS_S
        )
        if believed and not self._doubtful and now < self.until:
            self.until = now + self._lease_s

    def begin_hosting(self, until: float, now: float) -> None:
        """Note that the coordinator is in this process from now on, for certain until a time."""
        # No other process can have become the coordinator of the only endpoint meanwhile, or, if
        # one had, it confirmed the workers here.
        sole = until == FOR_EVER and not self._doubtful
        self._confirmed_here = sole and now < self.until
        self.host(until)

    def host(self, until: float) -> None:
        """Note that the coordinator is certainly in this process until a time."""
        self._hosted_until = until
        if self._confirmed_here:
            self.until = until

    def confirm_here(self) -> None:
        """Note that the coordinator in this process has confirmed the workers."""
        self._confirmed_here = True
        self.until = self._hosted_until

    def stop_hosting(self, now: float) -> None:
        """Note that the coordinator is in this process no longer."""
        self._confirmed_here = False
        self.until = min(self.until, now)  # the next coordinator may be at work

    def check(self, now: float, *, hosting: bool) -> None:
        """Assert the invariants."""
        latest = now + self._lease_s
        assert self.until <= (max(latest, self._hosted_until) if hosting else latest)
