"""Who coordinates by a register: until when this process holds it for certain, and when it may
doubt that the holder still lives.

    WAITING   another process is written down, or nobody is
      | the register has written this one down                  -> HOLDING
    HOLDING   `holds`; renewed again and again
      | another one is written down; or the register was silent for so long that what is held may
        lapse before the leases end that this process gave; or a node is gone while it is silent;
        or so few nodes are left that others may do better      -> WAITING

What is held lapses in the register when it was not renewed for its time to live. That time is
counted here from *before* each question was asked, less the leases that this process may have given
and a margin for clocks. So whatever stood still in between, it lets go before a successor can be
written down whose workers run.

While the register is silent, nobody can be written down, and nothing is lost; but a host that shuts
itself in both refuses its agents and keeps its coordinator from the register. An agent that left it
like that may have evicted it. So a holder that has not heard of the register for `FRESH_S` lets go
as soon as a node of its generation is gone.

A refused connection raises a doubt: the process that is written down may have ended. A firewall may
refuse in its name, though. It counts only at the first address of the record, by a process that has
reached this very holder before, or is on its machine; a loopback address may be another machine's.
Then the record is evicted, if it is not renewed while this process looks on.

Invariants: `check`.
"""

from relight.typed import NamedTuple

MARGIN_S = 0.5
"""For clocks that run unequally fast, over a time to live."""
FRESH_S = 1.0
SIGN_OF_LIFE_S = 0.8
"""A holder that has not renewed for so long, more than two renewals, may have ended."""


class Refused(NamedTuple):
    """A connection to the holder was refused. `at_first`: at the first address of its record.
    `is_ours`: it is of this machine; `is_loopback`: or may be another's, and `same_host`: the
    record was written on this one. `here`: workers of its group are on this machine.
    """

    revision: str
    at_first: bool
    is_ours: bool
    is_loopback: bool
    same_host: bool
    here: bool


class Candidacy:
    """What one process knows of its hold, and of that of others. Times in seconds.

    Args:
        ttl_s: what is held lapses after so long.
        lease_s: how long workers run on leases that a holder gave.
        lost_after_s: how long a silent node is waited for.
    """

    def __init__(self, ttl_s: float, lease_s: float, lost_after_s: float) -> None:
        self.until = 0.0
        """Until when this process is the holder for certain; 0 if it is not."""
        self.confirmed_at = 0.0
        """When the register was asked that last said so."""
        self._held_s = max(ttl_s - lease_s - MARGIN_S, ttl_s / 2)
        self._ttl_s = ttl_s
        self._lost_after_s = lost_after_s
        self._enough = False
        self._reached = ""
        self._refused = ("", 0.0)

    def held(self, asked_at: float) -> None:
        """The register says that this process is written down, to a question of that time."""
        self.confirmed_at = asked_at
        self.until = asked_at + self._held_s
        self.check()

    def let_go(self) -> None:
        """This process holds nothing any more."""
        self.until = 0.0
        self._enough = False

    def holds(self, now: float) -> bool:
        """Return whether this process is the holder at this moment."""
        return now < self.until

    def is_fresh(self, now: float) -> bool:
        """Return whether nobody can have evicted this holder without its knowing."""
        return now < self.confirmed_at + FRESH_S

    def has_too_few(self, *, enough: bool) -> bool:
        """Hear whether enough nodes reach this holder to train; return whether to make way for one
        that more of them reach.
        """
        before, self._enough = self._enough, enough
        return before and not enough

    def answered(self, revision: str) -> None:
        """The holder was reached."""
        self._reached = revision

    def doubts(self, refused: Refused, now: float) -> float | None:
        """Return for how long to look on before the record is evicted; None if it must not be."""
        revision, at_first, is_ours, is_loopback, same_host, here = refused
        if self._refused[0] != revision:
            self._refused = revision, now
        reached = self._reached == revision
        is_evidence = same_host if is_loopback else reached or is_ours
        if not (at_first and is_evidence):
            return None
        # Without workers here nobody waits for us: until all leases of its group are over.
        return SIGN_OF_LIFE_S if here or is_ours else self._lost_after_s * 2

    def lives(self, now: float) -> bool:
        """Return whether who refuses must live, as it renews its record."""
        return now - self._refused[1] > self._ttl_s

    def check(self) -> None:
        """Assert the invariants."""
        assert self.until == 0.0 or self.until == self.confirmed_at + self._held_s
        assert self._held_s < self._ttl_s
