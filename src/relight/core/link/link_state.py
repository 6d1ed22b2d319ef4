"""The state machine of one agent's link to its job's coordinator. The state machine determines the
state of the link, the lease for the workers on this node, and the time of the next attempt to
connect.

    SEEKING    no coordinator is known; the finder searches for it
      | it is in this process                                  -> HOSTING
      | a coordinator answers at the address that was found    -> JOINING
      | none answers for long enough, or all refuse this node  -> OVER, GiveUp
    JOINING    connected, but the workers here are not confirmed to run yet
      | the coordinator is now in this process                 -> HOSTING
      | it confirms their generation, or forms one             -> CONNECTED, and their lease begins
      | the connection ends, or no echo arrives for too long   -> SEEKING
    CONNECTED  each heartbeat echo renews the lease
      | the coordinator is now in this process                 -> HOSTING
      | the connection ends, or no echo arrives for too long   -> SEEKING; the lease is not renewed
      | no echo arrives for a moment: the finder searches
      | again, and a second connection replaces the first
      | once a coordinator has answered over it                -> JOINING
    HOSTING    the coordinator is in this process; the lease lasts as long as that is certain
      | it is no longer the coordinator                        -> SEEKING, the lease is over
    OVER       the agent has left, or has to give up

TCP retransmits lost packets after 0.2 s, 0.4 s and so on. After an 8 s network outage, a connection
stays silent for another 4.6 s, while a new one opens immediately. Until then, datagrams show each
end that the other end is alive. However, some firewalls drop all datagrams, and messages can only
be sent over a connection.

After the coordinator has reported the end of the job, this node does not search for another
coordinator. When the connection is closed or this process stops hosting the coordinator, the state
becomes OVER. Otherwise this node could join another run of the job, in which its workers would
never be started.

The rules in `core/link/lease` use the states above to determine how long the workers may run.

Invariants (`check`): a session exists only in JOINING and CONNECTED, and OVER is final. Sockets,
timers, names and message contents are deliberately left to other modules.
"""

from enum import Enum
from typing import NamedTuple

from relight.base.errors import EXIT_GROUP, EXIT_USAGE
from relight.base.text import format_duration
from relight.core.link.lease import Lease, Refusal
from relight.events.event_types import Tick

RETRY_S = 0.2
SLOW_RETRY_S = 1.0
"""Delay before the next attempt if the peer sent nothing or rejected this node."""
TURNED_AWAY_S = 30.0
"""How long to keep retrying after a rejection. The coordinator may belong to an earlier run of the
job that has a different token and is about to end.
"""
_SHOW_TIMES = 5
_SHOW_AFTER_S = 0.2
"""The delay before the first datagram, which imports hashlib for its authentication code."""
BURST_S = 0.05
"""Seconds between heartbeats while the last heartbeat has not been echoed."""
REDIAL_S = 1.5
"""A connection that carries no echo for this long is replaced, because there may be a new
coordinator.
"""
REDIAL_LIMIT_S = 2.0
"""Time limit for a second connection before the next attempt. The peer may be far away or busy."""
STALL_S = 0.5
"""If a timer in this process fires later than this, an apparent silence may be due to this process
itself.
"""
LATE_INTERVALS = 1.6
"""How late an echo may be, in heartbeat intervals. If an echo is later than this, packets may have
been lost. TCP would then delay the following heartbeats, so these are also sent as datagrams. A
firewall may drop the datagrams, so the connection still carries as many heartbeats as usual.
"""
FIRST_DATAGRAMS = 3
"""Number of datagrams that are sent in a row when an echo is late. With a round-trip time of 0.4 s,
the echoes of further datagrams would arrive after the end of the shortest lease (1 s). If there
were fewer datagrams, all of them might be lost.
"""
FIRST_DATAGRAMS_S = 0.01
"""Seconds between these datagrams."""


class LinkState(Enum):
    """The state of the link."""

    SEEKING = "seeking"
    JOINING = "joining"
    CONNECTED = "connected"
    HOSTING = "hosting"
    OVER = "over"


class LinkSettings(NamedTuple):
    """The job settings that affect the link. Times are in seconds.

    The `where` field is the endpoint, as shown to users. The `interval_s` field is the time between
    heartbeats. A coordinator counts as lost after `lost_after_s` of silence. The agent gives up if
    it does not find a first coordinator within `seek_s`, or a new coordinator within
    `join_timeout_s` after losing the last one.
    """

    where: str
    interval_s: float
    lease_s: float
    lost_after_s: float
    seek_s: float
    join_timeout_s: float


class Opened(NamedTuple):
    """Event: a coordinator at this address has responded."""

    peer: str


class Heard(NamedTuple):
    """Event: the coordinator sent a message. The `confirms_lease` field is set if the workers on
    this node may run. The `recovers` field is set if the coordinator is still looking for the other
    nodes of their generation.
    """

    confirms_lease: bool
    recovers: bool = False


class Echoed(NamedTuple):
    """Event: a heartbeat echo arrived, over the connection or as a datagram. The `extra_s` field
    says how much longer than usual the coordinator wants the interval to be
    (core/link/heartbeat_rate). An echo that arrives as a datagram does not contain `extra_s`.
    """

    number: int
    over_connection: bool = True
    extra_s: float = 0.0


class Broken(NamedTuple):
    """Event: the connection ended or could not be established. The `turned_away` field is set if
    the coordinator rejected this node. The `stepped_down` field is set if the coordinator announced
    that it is stepping down.
    """

    reason: str
    refusal: Refusal = Refusal.NOTHING
    turned_away: bool = False
    stepped_down: bool = False


class SecondFailed(NamedTuple):
    """Event: a second connection, opened alongside a silent one, did not lead to a coordinator.
    Either the connection was refused, or the peer does not know a coordinator.
    """

    refusal: Refusal


class NothingFound(NamedTuple):
    """Event: the finder did not find a coordinator. The next search begins after `again_s`."""

    reason: str
    again_s: float = RETRY_S


class Dialing(NamedTuple):
    """Event: the finder returned an address, and a connection to it is being opened."""


class Hosting(NamedTuple):
    """Event: the coordinator is in this process, at least until `until`. This event is repeated
    whenever that time is extended.
    """

    until: float


class SteppedDown(NamedTuple):
    """Event: the coordinator is no longer in this process. The next search begins after
    `again_s`.
    """

    again_s: float = 0.0


class JobOver(NamedTuple):
    """Event: the coordinator reported the end of the job for all nodes."""


class Left(NamedTuple):
    """Event: the agent's part of the job is done."""


Event = (
    Dialing
    | Opened
    | Heard
    | Echoed
    | Broken
    | SecondFailed
    | NothingFound
    | Hosting
    | SteppedDown
    | JobOver
    | Left
    | Tick
)


class Seek(NamedTuple):
    """Effect: start the finder. If the `beside` field is set, keep the existing connection until a
    coordinator responds over another one, within `REDIAL_LIMIT_S`.
    """

    beside: bool = False


class SendHeartbeat(NamedTuple):
    """Effect: send a heartbeat, over the connection, as a datagram, or both."""

    number: int
    over_connection: bool
    as_datagram: bool


class Disconnect(NamedTuple):
    """Effect: close any open connection without sending a message."""


class LetWorkersRun(NamedTuple):
    """Effect: the workers may run until `until`."""

    until: float


class CoordinatorLost(NamedTuple):
    """Effect: the coordinator to which this node was connected has been lost."""


class Say(NamedTuple):
    """Effect: print a message to the user."""

    text: str


class GiveUp(NamedTuple):
    """Effect: end this agent with an exit code and a reason."""

    exit_code: int
    reason: str


Effect = Seek | SendHeartbeat | Disconnect | LetWorkersRun | CoordinatorLost | Say | GiveUp


class _Session:
    """A connection to a coordinator, and the heartbeats sent over it."""

    def __init__(self, peer: str, now: float) -> None:
        self.peer = peer
        self.opened_at = now
        self.heard = False
        """Whether a coordinator has sent a message over this connection or the previous one."""
        self.late = 0
        """The number of consecutive heartbeats that were sent while an echo was late."""
        self.awake_at = now
        """When this process last resumed after a suspension."""
        self.over_connection_at = now
        """The time of the last echo over the connection."""
        self.redial_at = now + REDIAL_S
        self.datagrams_arrive = False
        self.extra_s = 0.0
        """How much longer than usual the heartbeat interval is."""
        self._shown = 0
        self._sent_at: dict[int, float] = {}
        self._number = 0

    def shows_address(self, now: float) -> bool:
        """Return whether to send a datagram just so that the coordinator sees its source address
        and this agent finds out whether datagrams arrive.
        """
        if (
            self.datagrams_arrive
            or self._shown >= _SHOW_TIMES
            or now < self.opened_at + _SHOW_AFTER_S
        ):
            return False
        self._shown += 1
        return True

    def send(self, now: float) -> int:
        """Record a new heartbeat and return its number."""
        self._number += 1
        self._sent_at[self._number] = now
        return self._number

    def echo(self, number: int) -> float | None:
        """Record an echo. Return the time when the echoed heartbeat was sent, or None if a later
        heartbeat has already been echoed.
        """
        sent_at = self._sent_at.get(number)
        if sent_at is not None:
            self._sent_at = {n: at for n, at in self._sent_at.items() if at > sent_at}
        return sent_at


class _Search:
    """The search for a coordinator, from the loss of the previous coordinator until the next
    coordinator sends a message.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self.turned_away = ""
        """Why a coordinator rejected this node, or empty once a coordinator accepts it."""
        self.turned_away_since = now
        self._said: set[str] = set()

    def turn_away(self, reason: str, now: float) -> None:
        """Record that a coordinator has rejected this node."""
        if not self.turned_away:
            self.turned_away, self.turned_away_since = reason, now

    def is_news(self, reason: str, now: float) -> bool:
        """Return whether to print this reason why the search continues. Each reason is printed
        once, and nothing is printed in the first second.
        """
        if reason in self._said or now - self.since < 1:
            return False
        self._said.add(reason)
        return True


class Link:
    """The state machine for one agent's link.

    Args:
        settings: the job's settings.
        now: the current time.
    """

    def __init__(self, settings: LinkSettings, now: float) -> None:
        self.state = LinkState.SEEKING
        self.settings = settings
        self.echoed_at = float("-inf")
        """When the most recent echoed heartbeat was sent."""
        self._job_over = False
        self._lease = Lease(settings.lease_s)
        self._session: _Session | None = None
        self._search = _Search(now)
        self._due: float | None = now  # time of the next search or heartbeat
        self._last = now
        self._effects: list[Effect] = []

    @property
    def turned_away(self) -> str:
        """Why a coordinator rejected this node, or empty once a coordinator accepts it."""
        return self._search.turned_away

    def step(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the effects.

        The following events are ignored: any event after OVER, unknown echoes, and early Ticks.
        """
        self._effects, self._last = [], now
        if self.state is LinkState.OVER:
            return []
        leased_until, session = self._lease.until, self._session
        match event:
            case Opened(peer) if self.state not in (LinkState.HOSTING, LinkState.OVER):
                self._open(peer, now)
            case Heard(confirms_lease, recovers) if session is not None:
                session.heard = True
                if confirms_lease:
                    self.state = LinkState.CONNECTED
                    self._lease.confirm(self.echoed_at, recovers=recovers)
            case Heard(True, recovers) if self.state is LinkState.HOSTING:
                self._lease.confirm_here(recovers=recovers)
            case Echoed() if session is not None:
                self._echo(session, event)
            case Broken() if self.state is not LinkState.HOSTING:
                self._break(event, now)
            case SecondFailed(refusal) if session is not None:
                session.redial_at = now + RETRY_S  # the network is working
                self._lease.on_refused_connection(refusal, now)
            case Dialing() if self.state is LinkState.SEEKING:
                self._due = None
            case NothingFound(reason, again_s) if self.state is LinkState.SEEKING:
                self._wait(reason, again_s, now)
            case Hosting(until):
                self._host(until)
            case SteppedDown(again_s) if self.state is LinkState.HOSTING:
                self._lease.stop_hosting(now)
                if self._job_over:
                    self._leave()
                else:
                    self.state, self._due = LinkState.SEEKING, now + again_s
                    self._search = _Search(now)
            case JobOver():
                self._job_over = True
            case Left():
                self._leave()
            case Tick() if self._due is not None and now >= self._due:
                if session is not None:
                    self._send_heartbeat(session, now)
                elif self.state is LinkState.SEEKING:
                    self._due = None  # until the finder reports, or the connection opens or fails
                    self._effects.append(Seek())
        if self._lease.until != leased_until:  # must precede `Seek`, which may reenter `step`
            self._effects.insert(0, LetWorkersRun(self._lease.until))
        return self._effects

    def deadline(self) -> float | None:
        """Return the time when the next Tick is due, or None."""
        return self._due

    def unheard_s(self, now: float) -> float:
        """Return how much time has passed since the last echoed heartbeat was sent, not counting
        any extra heartbeat interval.
        """
        extra_s = 0.0 if self._session is None else self._session.extra_s
        return now - self.echoed_at - extra_s

    def may_be_superseded(self, now: float) -> bool:
        """Return whether other nodes may be in a later generation that this node does not know
        about.
        """
        return self._lease.may_be_superseded(now)

    def explain(self, now: float) -> str:
        """Describe the state of the link."""
        where = self.settings.where
        match self.state:
            case LinkState.SEEKING:
                waited = format_duration(now - self._search.since)
                return f"looking for the coordinator at {where} for {waited}"
            case LinkState.JOINING:
                return "the coordinator has not yet confirmed that workers may run here"
            case LinkState.CONNECTED:
                return (
                    f"connected to the coordinator, last heartbeat {now - self.echoed_at:.1f} s ago"
                )
            case LinkState.HOSTING:
                return "this node coordinates the group"
            case LinkState.OVER:
                return "this node has left the job"

    def check(self) -> None:
        """Assert the invariants."""
        connected = self.state in (LinkState.JOINING, LinkState.CONNECTED)
        assert connected == (self._session is not None)
        if connected:
            assert self._due is not None
            assert self.echoed_at <= self._last
        if self.state in (LinkState.HOSTING, LinkState.OVER):
            assert self._due is None
        if self._job_over:
            assert self.state is not LinkState.SEEKING
        if self.state is not LinkState.OVER:
            self._lease.check(self._last, hosting=self.state is LinkState.HOSTING)

    def _wait(self, reason: str, seconds: float, now: float) -> None:
        """Schedule the next search after `seconds`, or give up. Print the reason if it is new."""
        settings, search = self.settings, self._search
        waited = now - search.since
        if search.turned_away and now - search.turned_away_since > TURNED_AWAY_S:
            text = f"the coordinator at {settings.where} refuses this node: {search.turned_away}"
            self._give_up(EXIT_USAGE, text)
            return
        ever = self.echoed_at > float("-inf")
        if waited > (settings.join_timeout_s if ever else settings.seek_s):
            text = f"no coordinator at {settings.where} for {format_duration(waited)}: {reason}"
            if search.turned_away and search.turned_away not in reason:
                text += f"; the last one that responded refused this node: {search.turned_away}"
            self._give_up(EXIT_GROUP, text)
            return
        if search.is_news(reason, now):
            self._effects.append(Say(f"waiting for the coordinator at {settings.where}: {reason}"))
        self._due = now + seconds

    def _give_up(self, exit_code: int, reason: str) -> None:
        # Only the agent leaves. The workers may run until the end of their lease.
        self.state, self._due = LinkState.OVER, None
        self._effects.append(GiveUp(exit_code, reason))

    def _leave(self) -> None:
        self.state, self._due, self._session = LinkState.OVER, None, None
        self._effects.append(Disconnect())

    def _open(self, peer: str, now: float) -> None:
        self.state = LinkState.JOINING
        before, session = self._session, _Session(peer, now)
        # A replacement inherits this. If the replacement breaks right away, a coordinator has been
        # lost.
        session.heard = before is not None and before.heard
        self._session = session
        self.echoed_at = now
        self._lease.on_unconfirmed_coordinator()
        self._search.turned_away = ""
        self._send_heartbeat(session, now)

    def _break(self, event: Broken, now: float) -> None:
        if self._job_over:
            self._leave()
            return
        reason, refusal, turned_away, stepped_down = event
        session, self._session = self._session, None
        self.state, self._due = LinkState.SEEKING, None
        self._lease.on_refused_connection(refusal, now)
        if turned_away:
            self._search.turn_away(reason, now)
        if session is not None and session.heard:
            self._search = _Search(now)
            lost = f"lost the coordinator at {session.peer}: {reason}; reconnecting"
            self._effects += [Say(lost), CoordinatorLost()]
            if now - session.opened_at >= SLOW_RETRY_S:
                self._effects.append(Seek())
            else:  # it may close the next connection just as early
                self._due = now + RETRY_S
        else:
            mute = session is not None and not stepped_down
            self._wait(reason, SLOW_RETRY_S if turned_away or mute else RETRY_S, now)

    def _host(self, until: float) -> None:
        if self.state is LinkState.HOSTING:
            self._lease.host(until)
            return
        self.state, self._due, self._session = LinkState.HOSTING, None, None
        self._lease.begin_hosting(until)
        self._effects.append(Disconnect())

    def _send_heartbeat(self, session: _Session, now: float) -> None:
        settings = self.settings
        if self._due is not None and now > self._due + STALL_S:
            # It is not known whether the coordinator was silent in the meantime, so it gets more
            # time, but at most twice the time in total.
            session.awake_at = min(now, self.echoed_at + settings.lost_after_s)
        silent_s = now - self.echoed_at
        if now - max(self.echoed_at, session.awake_at) > settings.lost_after_s:
            self._effects.append(Disconnect())
            self._break(Broken(f"no heartbeat from it for {silent_s:.1f} s"), now)
            return
        extra_s = session.extra_s
        redial_at = max(session.redial_at, session.over_connection_at + REDIAL_S + extra_s)
        if now >= redial_at and not self._job_over:
            session.redial_at = now + REDIAL_LIMIT_S
            self._effects.append(Seek(beside=True))
        late = silent_s > settings.interval_s * LATE_INTERVALS + extra_s
        if session.shows_address(now):
            show = SendHeartbeat(session.send(now), over_connection=False, as_datagram=True)
            self._effects.append(show)
        session.late = session.late + 1 if late else 0
        number = session.send(now)
        is_regular = not late or number % max(1, round(settings.interval_s / BURST_S)) == 0
        self._effects.append(SendHeartbeat(number, is_regular, as_datagram=late))
        if late:
            self._due = now + (FIRST_DATAGRAMS_S if session.late < FIRST_DATAGRAMS else BURST_S)
        else:
            self._due = now + settings.interval_s + extra_s

    def _echo(self, session: _Session, event: Echoed) -> None:
        number, over_connection, extra_s = event
        if over_connection:
            session.over_connection_at = self._last
            if extra_s < session.extra_s and self._due is not None:
                self._due = min(self._due, self._last + self.settings.interval_s + extra_s)
            session.extra_s = extra_s
        else:
            session.datagrams_arrive = True
        sent_at = session.echo(number)
        if sent_at is None:
            return
        self.echoed_at = max(self.echoed_at, sent_at)
        if self.state is LinkState.CONNECTED:
            self._lease.renew(self.echoed_at)
