"""One agent's link to the coordinator of its job: its state, until when the workers here may run,
when to try again.

    SEEKING    no coordinator is known; the finder is asked where it is
      | it is in this process                                  -> HOSTING
      | a coordinator answers at the place that was found      -> JOINING
      | none does for long enough, or it turns this node away  -> OVER, GiveUp
    JOINING    connected; nothing yet says that the workers here may run
      | it confirms their generation, or forms one             -> CONNECTED, and their lease begins
      | the connection ends, or no echo comes for too long     -> SEEKING
    CONNECTED  each echo of a heartbeat renews the lease
      | the connection ends, or no echo comes for too long     -> SEEKING; the lease runs to its end
    HOSTING    the coordinator is in this process; the lease lasts as long as that is certain
      | it coordinates no longer                               -> SEEKING, the lease is over
    OVER       the agent has left, or has to give up

Rules of the lease:

- It counts from when the echoed heartbeat was *sent*: the coordinator received that heartbeat
  later, and waits for longer than the lease, by a margin for clocks. So the lease is over before
  the other nodes go on.
- It is renewed only if the coordinator has said over this connection, or in this process, that the
  workers' generation goes on. `StopWorkers` does not say that: the other nodes may already run the
  next generation.
- A refused connection renews a lease that is not over, if the finder says that no other process can
  have become the coordinator. As a firewall may also refuse, that counts only for `REFUSALS_S`
  after the last echo, or if the refusal comes from this machine itself. A lease that is over stays
  over: the other nodes may have gone on before the coordinator ended. It is not renewed either if
  this node has since reached a coordinator that did not confirm the workers here.
- If this process becomes the host of the only endpoint, it keeps a lease that is not over, as no
  other node can have gone on without it, unless it reached such a coordinator in between. A lease
  that is over needs a confirmation, as in any other case.

Invariants (`check`): outside of HOSTING a lease never ends later than `lease_s` from now;
heartbeats are due only while connected; OVER is final. Deliberately not here: sockets, timers,
names, the content of messages.
"""

from enum import Enum

from relight.errors import EXIT_GROUP, EXIT_USAGE
from relight.events import Tick
from relight.typed import NamedTuple

RETRY_S = 0.2
LATER_S = 1.0
"""Delay before the next try at a peer that says nothing after connecting, or turns us away."""
UNFIT_S = 30.0
"""How long nodes of an earlier try of the job, with another token, may still be there."""
BURST_S = 0.05
"""Seconds between heartbeats while the last one has no echo."""
LATE = 1.6
"""In intervals: an echo that takes longer may be lost; then datagrams carry heartbeats as well."""
REFUSALS_S = 5.0
"""How long a refused connection counts: long enough to start a coordinator again."""
FOR_EVER = float("inf")


class LinkState(Enum):
    """The state of the link."""

    SEEKING = "seeking"
    JOINING = "joining"
    CONNECTED = "connected"
    HOSTING = "hosting"
    OVER = "over"


class Refusal(Enum):
    """How certainly a refused connection shows that the coordinator has ended."""

    NOTHING = "nothing"
    HINT = "nobody listens there, if no firewall says so"
    PROOF = "nobody listens there"


class Terms(NamedTuple):
    """The settings of the job that concern the link. Times in seconds.

    `where` names the endpoint for people. A coordinator that is silent for `lost_after_s` is given
    up. Without one for `seek_s` from the start, or for `rejoin_s` later, the job ends.
    """

    where: str
    interval_s: float
    lease_s: float
    lost_after_s: float
    seek_s: float
    rejoin_s: float


class Opened(NamedTuple):
    """Event: a coordinator at this address has answered."""

    peer: str


class Heard(NamedTuple):
    """Event: the coordinator sent a message. `lets_run`: it permits the workers here to run."""

    lets_run: bool


class Echoed(NamedTuple):
    """Event: the echo of a heartbeat has come."""

    number: int


class Broken(NamedTuple):
    """Event: the connection has ended, or could not be made. `unfit`: the coordinator turned this
    node away. `told`: it said itself that it coordinates no longer.
    """

    reason: str
    refusal: Refusal = Refusal.NOTHING
    unfit: bool = False
    told: bool = False


class NothingFound(NamedTuple):
    """Event: the finder has found no coordinator; ask again after `again_s`."""

    reason: str
    again_s: float = RETRY_S


class PlaceFound(NamedTuple):
    """Event: the finder has found a place, which is being tried."""


class Hosting(NamedTuple):
    """Event: the coordinator is in this process, for certain until then; repeated when extended."""

    until: float


class Resigned(NamedTuple):
    """Event: the coordinator is in this process no longer; seek again after `again_s`."""

    again_s: float = 0.0


class Left(NamedTuple):
    """Event: the agent is done with the job."""


Event = (
    PlaceFound | Opened | Heard | Echoed | Broken | NothingFound | Hosting | Resigned | Left | Tick
)


class Seek(NamedTuple):
    """Effect: ask the finder."""


class SendHeartbeat(NamedTuple):
    """Effect: send a heartbeat; `late`: the echo of the last one is late."""

    number: int
    late: bool


class Disconnect(NamedTuple):
    """Effect: close the connection, if there is one, without a message."""


class Lease(NamedTuple):
    """Effect: the workers may run until then."""

    until: float


class CoordinatorLost(NamedTuple):
    """Effect: the coordinator that this node was connected to is gone."""


class Say(NamedTuple):
    """Effect: print a message to the user."""

    text: str


class GiveUp(NamedTuple):
    """Effect: the job ends here."""

    exit_code: int
    reason: str


Effect = Seek | SendHeartbeat | Disconnect | Lease | CoordinatorLost | Say | GiveUp


class Link:
    """The state machine of one agent's link.

    Args:
        terms: the settings of the job.
        now: the time.
    """

    def __init__(self, terms: Terms, now: float) -> None:
        self.state = LinkState.SEEKING
        self.terms = terms
        self.leased_until = float("-inf")
        """Until when the workers here may run."""
        self.echoed_at = float("-inf")
        """When the last heartbeat that was echoed was sent."""
        self.unfit = ""
        """Why a coordinator turned this node away; empty once a coordinator accepts it."""
        self._unfit_since = now
        self._since = now  # without a coordinator
        self._due: float | None = now  # when to ask or send a heartbeat next
        self._peer = ""
        self._opened_at = now
        self._told: set[str] = set()
        self._heard = False
        self._doubtful = False  # the others may have gone on without the workers here
        self._confirmed = False
        self._until = float("-inf")
        self._sent: dict[int, float] = {}
        self._number = 0
        self._last = now
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return the effects.

        Events that change nothing: anything after OVER, an unknown echo, a Tick too early.
        """
        self._effects, self._last = [], now
        if self.state is LinkState.OVER:
            return []
        connected = self.state in (LinkState.JOINING, LinkState.CONNECTED)
        match event:
            case Opened(peer) if self.state is LinkState.SEEKING:
                self._peer, self._opened_at = peer, now
                self.state, self._heard, self.unfit = LinkState.JOINING, False, ""
                self._doubtful = True
                self.echoed_at = now
                self._beat(now)
            case Heard(lets_run) if connected:
                self._heard = True
                self._told.clear()
                if lets_run:
                    self.state, self._doubtful = LinkState.CONNECTED, False
                    self._lease(self.echoed_at + self.terms.lease_s)
            case Heard(lets_run) if self.state is LinkState.HOSTING and lets_run:
                self._confirmed = True
                self._lease(self._until)
            case Echoed(number) if connected and number in self._sent:
                self._echo(self._sent[number])
            case Broken() if self.state is not LinkState.HOSTING:
                self._broken(event, now)
            case PlaceFound() if self.state is LinkState.SEEKING:
                self._due = None
            case NothingFound(reason, again_s) if self.state is LinkState.SEEKING:
                self._wait(reason, again_s, now)
            case Hosting(until):
                self._host(until, now)
            case Resigned(again_s) if self.state is LinkState.HOSTING:
                self._resign(again_s, now)
            case Left():
                self.state, self._due = LinkState.OVER, None
                self._sent.clear()
                self._effects.append(Disconnect())
            case Tick() if self._due is not None and now >= self._due:
                if connected:
                    self._beat(now)
                elif self.state is LinkState.SEEKING:
                    self._due = None  # until the finder, or the place found, answers
                    self._effects.append(Seek())
        return self._effects

    def deadline(self) -> float | None:
        """Return when the next Tick is due, or None."""
        return self._due

    def explain(self, now: float) -> str:
        """Return the state of the link in words."""
        where = self.terms.where
        match self.state:
            case LinkState.SEEKING:
                return f"looking for the coordinator at {where} for {now - self._since:.0f} s"
            case LinkState.JOINING:
                return "the coordinator has not said yet that the workers here may run"
            case LinkState.CONNECTED:
                return f"connected to the coordinator, heard {now - self.echoed_at:.1f} s ago"
            case LinkState.HOSTING:
                return "this node coordinates the group"
            case LinkState.OVER:
                return "this node has left the job"

    def check(self) -> None:
        """Assert the invariants."""
        if self.state in (LinkState.JOINING, LinkState.CONNECTED):
            assert self._due is not None
            assert self.echoed_at <= self._last
        else:
            assert not self._sent
        if self.state is LinkState.HOSTING:
            assert self._due is None
            assert self.leased_until <= max(self._until, self._last + self.terms.lease_s)
        elif self.state is not LinkState.OVER:
            assert self.leased_until <= self._last + self.terms.lease_s
        assert self.state is not LinkState.OVER or self._due is None

    def _wait(self, reason: str, seconds: float, now: float) -> None:
        """Ask again after `seconds`, or give up; print a new reason."""
        terms, waited = self.terms, now - self._since
        if self.unfit and now - self._unfit_since > UNFIT_S:
            text = f"the coordinator at {terms.where} turns us away: {self.unfit}"
            self._give_up(EXIT_USAGE, text)
            return
        ever = self.echoed_at > float("-inf")
        if waited > (terms.rejoin_s if ever else terms.seek_s):
            text = f"no coordinator at {terms.where} for {waited:.0f} s: {reason}"
            self._give_up(EXIT_GROUP, text)
            return
        if reason not in self._told and waited >= 1:
            self._told.add(reason)
            self._effects.append(Say(f"waiting for the coordinator at {terms.where}: {reason}"))
        self._due = now + seconds

    def _give_up(self, exit_code: int, reason: str) -> None:
        # Only the agent leaves: the workers may run to the end of their lease.
        self.state, self._due = LinkState.OVER, None
        self._effects.append(GiveUp(exit_code, reason))

    def _broken(self, event: Broken, now: float) -> None:
        reason, refusal, unfit, told = event
        was_heard, mute = self._heard, self.state is not LinkState.SEEKING and not told
        self.state, self._due, self._heard = LinkState.SEEKING, None, False
        self._sent.clear()
        believed = refusal is Refusal.PROOF or (
            refusal is Refusal.HINT and now < self.echoed_at + REFUSALS_S
        )
        if believed and not self._doubtful and now < self.leased_until:
            self._lease(now + self.terms.lease_s)
        if unfit and not self.unfit:
            self.unfit, self._unfit_since = reason, now
        if was_heard:
            self._since = now
            lost = f"lost the coordinator at {self._peer}: {reason}; looking for it"
            self._effects += [Say(lost), CoordinatorLost()]
            if now - self._opened_at >= LATER_S:
                self._effects.append(Seek())
            else:  # it may close the next connection as soon
                self._due = now + RETRY_S
        else:
            self._wait(reason, LATER_S if unfit or mute else RETRY_S, now)

    def _host(self, until: float, now: float) -> None:
        self._until = until
        if self.state is not LinkState.HOSTING:
            self.state, self._due = LinkState.HOSTING, None
            self._sent.clear()
            self._told.clear()
            self._effects.append(Disconnect())
            # No other process can have become the coordinator of the only endpoint meanwhile, or,
            # if one had, it confirmed the workers here.
            sole = until == FOR_EVER and not self._doubtful
            self._confirmed = sole and now < self.leased_until
        if self._confirmed:
            self._lease(until)

    def _resign(self, again_s: float, now: float) -> None:
        self.state, self._confirmed = LinkState.SEEKING, False
        if self.leased_until > now:
            self._lease(now)  # the next coordinator may be at work
        self._since, self._due = now, now + again_s

    def _beat(self, now: float) -> None:
        terms, silent_s = self.terms, now - self.echoed_at
        if silent_s > terms.lost_after_s:
            self._effects.append(Disconnect())
            self._broken(Broken(f"no word from it for {silent_s:.1f} s"), now)
            return
        late = silent_s > terms.interval_s * LATE
        self._number += 1
        self._sent[self._number] = now
        self._effects.append(SendHeartbeat(self._number, late))
        self._due = now + (BURST_S if late else terms.interval_s)

    def _echo(self, sent_at: float) -> None:
        self.echoed_at = max(self.echoed_at, sent_at)
        for older in [n for n, at in self._sent.items() if at <= sent_at]:
            del self._sent[older]
        if self.state is LinkState.CONNECTED:
            self._lease(self.echoed_at + self.terms.lease_s)

    def _lease(self, until: float) -> None:
        self.leased_until = until
        self._effects.append(Lease(until))
