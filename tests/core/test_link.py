"""The link of one agent: leases, time limits, retries, as pure steps."""

import pytest

from relight.base.errors import EXIT_GROUP, EXIT_USAGE
from relight.core.link.lease import REFUSALS_S, Refusal
from relight.core.link.link_state import (
    RETRY_S,
    SLOW_RETRY_S,
    TURNED_AWAY_S,
    Broken,
    CoordinatorLost,
    Dialing,
    Disconnect,
    Echoed,
    Effect,
    Event,
    GiveUp,
    Heard,
    Hosting,
    JobOver,
    Left,
    LetWorkersRun,
    Link,
    LinkSettings,
    LinkState,
    NothingFound,
    Opened,
    Say,
    SecondFailed,
    Seek,
    SendHeartbeat,
    SteppedDown,
)
from relight.core.workers.supervision import FOR_EVER
from relight.events.event_types import Tick

LEASE_S = 9.0
SETTINGS = LinkSettings("there", 0.5, LEASE_S, 10.0, 20.0, 10.0)


class Played:
    """A link, the time, and its requests."""

    def __init__(self) -> None:
        self.now = 100.0
        self.link = Link(SETTINGS, self.now)

    def step(self, event: Event, seconds: float = 0.0) -> list[Effect]:
        """Let time pass, then something happen."""
        self.now += seconds
        effects = self.link.step(event, self.now)
        self.link.check()
        return effects

    def connected(self) -> "Played":
        """Come to the state CONNECTED, with a lease from now."""
        self.step(Tick())
        self.step(Dialing())
        (heartbeat,) = self.step(Opened("10.0.0.1:29400"))
        assert heartbeat == SendHeartbeat(1, over_connection=True, as_datagram=False)
        self.step(Echoed(1))
        assert self.step(Heard(confirms_lease=True)) == [LetWorkersRun(self.now + LEASE_S)]
        assert self.link.state is LinkState.CONNECTED
        return self

    def lost(self, refusal: Refusal = Refusal.NOTHING, seconds: float = 0.0) -> list[Effect]:
        """End the connection."""
        return self.step(Broken("gone", refusal), seconds)


def test_lease_counts_from_sending_of_echoed_heartbeat() -> None:
    """However late an echo comes, its lease counts from the heartbeat."""
    played = Played().connected()
    effects = played.step(Tick(), 0.5)
    sent_at = played.now
    assert SendHeartbeat(3, over_connection=True, as_datagram=False) in effects
    assert played.step(Echoed(3), 8.0) == [LetWorkersRun(sent_at + LEASE_S)]
    assert played.step(Echoed(3)) == []  # an echo that is repeated


def test_echo_renews_no_lease_before_confirmation() -> None:
    """A node with workers of a generation waits for its confirmation; Stop is not one."""
    played = Played()
    played.step(Tick())
    played.step(Opened("x"))
    assert played.step(Echoed(1), 0.01) == []
    assert played.step(Heard(confirms_lease=False)) == []
    assert played.link.state is LinkState.JOINING
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(100.0 + LEASE_S)]


def test_new_connection_sends_datagrams_until_one_is_answered() -> None:
    show = SendHeartbeat(2, over_connection=False, as_datagram=True)
    played = Played().connected()
    assert show in played.step(Tick(), 0.5)
    assert sum(isinstance(each, SendHeartbeat) for each in played.step(Tick(), 0.5)) == 2
    played.step(Echoed(2, over_connection=False))
    played.step(Echoed(5))
    assert sum(isinstance(each, SendHeartbeat) for each in played.step(Tick(), 0.5)) == 1


def connected_with_datagrams() -> Played:
    """Return a connected link whose datagrams have been answered."""
    played = Played().connected()
    played.step(Tick(), 0.5)
    played.step(Echoed(2, over_connection=False))
    played.step(Echoed(3))
    return played


def test_late_echo_speeds_up_heartbeats() -> None:
    """Three go immediately, as datagrams, later one every 50 ms."""
    played = connected_with_datagrams()
    played.step(Tick(), 0.5)
    assert played.step(Tick(), 0.5) == [SendHeartbeat(5, over_connection=False, as_datagram=True)]
    pauses = []
    for _ in range(4):
        due = played.link.deadline()
        assert due is not None
        pauses.append(round(due - played.now, 3))
        (sent,) = played.step(Tick(), due - played.now)
        assert isinstance(sent, SendHeartbeat) and sent.as_datagram
    assert pauses == [0.01, 0.01, 0.05, 0.05]


def silent_until(played: Played, seconds: float) -> list[Effect]:
    """Let a coordinator be silent; return the requests of the link."""
    effects, end = list[Effect](), played.now + seconds
    while (due := played.link.deadline()) is not None and due <= end:
        effects += played.step(Tick(), due - played.now)
    played.now = end
    return effects


def test_silent_coordinator_is_sought_beside_its_connection() -> None:
    """First after 1.5 s, then every 2 s; the lease of the workers runs on."""
    played = connected_with_datagrams()
    seeks = [each for each in silent_until(played, 9.4) if isinstance(each, Seek)]
    assert seeks == [Seek(beside=True)] * 4
    assert played.link.state is LinkState.CONNECTED


def test_second_connection_replaces_a_silent_one() -> None:
    """Its coordinator has to confirm the workers; until then their lease is that of the first."""
    played = connected_with_datagrams()
    silent_until(played, 3.0)
    assert not any(isinstance(each, LetWorkersRun) for each in played.step(Opened("10.0.0.2:1")))
    assert played.link.state is LinkState.JOINING
    assert LetWorkersRun(played.now + LEASE_S) in played.step(Heard(confirms_lease=True))


def test_remote_refusal_of_second_connection_shortens_lease() -> None:
    """A firewall may leave the first one silent, and refuse and report this node elsewhere."""
    played = connected_with_datagrams()
    silent_until(played, 1.5)
    (lease,) = played.step(SecondFailed(Refusal.HINT))
    assert lease == LetWorkersRun(played.now + 5.0)
    assert played.step(SecondFailed(Refusal.NOTHING), 1.0) == []


def test_refused_second_connection_is_retried_immediately() -> None:
    """The network works again: another host may coordinate now."""
    played = connected_with_datagrams()
    silent_until(played, 1.5)
    played.step(SecondFailed(Refusal.HINT))
    assert Seek(beside=True) in silent_until(played, 0.3)


def test_second_connection_breaking_means_coordinator_lost() -> None:
    """The search for the next one begins then, and not when this node first searched."""
    played = connected_with_datagrams()
    silent_until(played, 3.0)
    played.step(Opened("10.0.0.2:1"))
    effects = played.lost()
    assert CoordinatorLost() in effects
    assert played.link.explain(played.now).endswith("for 0 s")


def test_datagrams_alone_do_not_keep_a_connection() -> None:
    """They renew the lease; but messages come over the connection only."""
    played = connected_with_datagrams()
    seeks = 0
    for _ in range(60):
        for effect in played.step(Tick(), 0.05):
            match effect:
                case SendHeartbeat(number, as_datagram=True):
                    played.step(Echoed(number, over_connection=False))
                case Seek(beside=True):
                    seeks += 1
    assert seeks == 1
    assert played.now - played.link.echoed_at < 1.0


def test_coordinator_silent_for_too_long_is_given_up() -> None:
    played = connected_with_datagrams()
    effects = silent_until(played, 10.2)
    assert Disconnect() in effects and effects[-2:] == [CoordinatorLost(), Seek()]
    assert any("no heartbeat from it for 10." in str(each) for each in effects)
    assert played.link.state is LinkState.SEEKING


def test_own_suspension_is_not_held_against_coordinator() -> None:
    """It is given up only if it stays silent for as long again."""
    played = connected_with_datagrams()
    played.step(Tick(), 9.9)  # half a second late or more; a message may have been missed
    played.step(Tick(), 1.0)
    assert played.link.state is LinkState.CONNECTED
    assert Disconnect() in silent_until(played, 10.0)


def test_late_echoes_keep_connection_without_datagrams() -> None:
    """The connection carries a heartbeat each interval, whatever goes as a datagram beside it."""
    played = Played().connected()
    sent: list[tuple[float, int]] = []
    leased_until = played.now + LEASE_S
    for _ in range(1000):  # 50 s; an echo takes 0.9 s, nearly two intervals
        played.now += 0.05
        while sent and played.now >= sent[0][0] + 0.9:
            for effect in played.step(Echoed(sent.pop(0)[1])):
                if isinstance(effect, LetWorkersRun):
                    leased_until = effect.until
        for effect in played.step(Tick()):
            match effect:
                case SendHeartbeat(number, over_connection=True):
                    sent.append((played.now, number))
                case Seek():
                    raise AssertionError("it looks for another one")
        assert played.link.state is LinkState.CONNECTED
        assert leased_until > played.now


def test_pauses_before_redialling_coordinator_that_hangs_up() -> None:
    """One that was there for a while and is gone is looked for immediately."""
    played = Played().connected()
    assert not any(isinstance(effect, Seek) for effect in played.lost(seconds=0.1))
    assert played.link.deadline() == played.now + RETRY_S
    played = Played().connected()
    assert isinstance(played.lost(seconds=1.0)[-1], Seek)


def test_local_refusal_renews_unexpired_lease() -> None:
    """No process coordinates then. A lease that is over stays over."""
    for seconds, renewed in ((0.5, True), (LEASE_S + 0.1, False)):
        played = Played().connected()
        played.lost()
        effects = played.lost(Refusal.PROOF, seconds)
        assert (LetWorkersRun(played.now + LEASE_S) in effects) == renewed


def test_remote_refusal_shortens_lease() -> None:
    """A firewall may have sent that, and may have told the coordinator that this node is gone."""
    played = Played().connected()
    played.lost()
    until = played.now + 1.0 + REFUSALS_S
    assert LetWorkersRun(until) in played.lost(Refusal.HINT, 1.0)
    assert not any(isinstance(each, LetWorkersRun) for each in played.lost(Refusal.HINT, 1.0))
    played.step(Opened("x"))
    assert LetWorkersRun(played.now + LEASE_S) in played.step(Heard(confirms_lease=True))


def test_refusal_after_unconfirmed_coordinator_renews_nothing() -> None:
    """It has not confirmed the workers here, and then ended: its refusal renews nothing."""
    played = Played().connected()
    played.lost()
    played.step(Opened("x"), 0.1)
    played.lost()
    assert not any(isinstance(each, LetWorkersRun) for each in played.lost(Refusal.PROOF, 0.1))


def test_endpoint_host_keeps_unexpired_lease() -> None:
    """Nobody can have gone on without it. With one that is over, it waits for a word."""
    played = Played().connected()
    played.lost()
    assert played.step(Hosting(FOR_EVER), 0.5) == [LetWorkersRun(FOR_EVER), Disconnect()]
    played = Played().connected()
    played.lost()
    assert played.step(Hosting(FOR_EVER), LEASE_S + 0.5) == [Disconnect()]
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(FOR_EVER)]


def test_endpoint_host_defers_to_recent_coordinator() -> None:
    """One that has answered, and has not let the workers here run, may have let others run."""
    played = Played().connected()
    played.lost()
    played.step(Opened("x"), 0.1)
    played.lost()
    assert played.step(Hosting(FOR_EVER), 0.1) == [Disconnect()]
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(FOR_EVER)]


def test_host_workers_run_as_long_as_last_answered_node() -> None:
    """And not before its generation is confirmed; also after it has stepped down."""
    played = Played().connected()
    played.lost()
    assert played.step(Hosting(110.0), 0.5) == [Disconnect()]
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(110.0 + LEASE_S)]
    assert played.step(Hosting(111.0), 1.0) == [LetWorkersRun(111.0 + LEASE_S)]
    assert played.step(SteppedDown(3.0), 1.0) == [LetWorkersRun(played.now + LEASE_S)]
    assert played.link.state is LinkState.SEEKING
    assert played.link.deadline() == played.now + 3.0


def test_retry_delay_depends_on_last_outcome() -> None:
    """Soon after nobody was there; later, after a peer that says nothing; immediately, after one
    that was in touch is lost.
    """
    played = Played()
    assert played.step(Tick()) == [Seek()]
    assert played.link.deadline() is None
    assert played.step(Tick(), 50) == []
    played.step(Broken("refused"))
    assert played.link.state is LinkState.OVER  # 50 s are too long
    played = Played()
    played.step(Tick())
    played.step(Broken("refused"))
    assert played.link.deadline() == pytest.approx(played.now + RETRY_S)
    played.step(Opened("x"))
    played.step(Broken("it said nothing"))
    assert played.link.deadline() == pytest.approx(played.now + SLOW_RETRY_S)
    played.step(Opened("x"))
    played.step(Broken("another one does", stepped_down=True))
    assert played.link.deadline() == pytest.approx(played.now + RETRY_S)
    said = Say("lost the coordinator at 10.0.0.1:29400: gone; reconnecting")
    assert Played().connected().lost(seconds=1.0) == [said, CoordinatorLost(), Seek()]


def test_gives_up_without_coordinator_after_timeout() -> None:
    """Patience is longer or shorter if the coordinator was there before or not."""
    for played, limit_s in (
        (Played(), SETTINGS.seek_s),
        (Played().connected(), SETTINGS.join_timeout_s),
    ):
        if played.link.state is LinkState.CONNECTED:
            played.lost()
        played.step(NothingFound("nobody is there", 0.3), limit_s)
        assert played.link.state is LinkState.SEEKING
        (end,) = played.step(NothingFound("nobody is there", 0.3), 0.5)
        assert isinstance(end, GiveUp) and end.exit_code == EXIT_GROUP
        assert "nobody is there" in end.reason
        assert played.step(Tick(), 1) == []


def test_rejected_node_retries_for_a_while() -> None:
    """A former try of the job may still be there; then the user has to act."""
    played = Played()
    played.step(Broken("other tokens", turned_away=True))
    played.link._search.since = played.now + TURNED_AWAY_S
    assert played.link.turned_away == "other tokens"
    played.step(Broken("other tokens", turned_away=True), TURNED_AWAY_S)
    (end,) = played.step(Broken("other tokens", turned_away=True), 1)
    assert isinstance(end, GiveUp) and end.exit_code == EXIT_USAGE


def test_giving_up_names_last_rejection() -> None:
    played = Played()
    played.step(Broken("other tokens", turned_away=True))
    (end,) = played.step(NothingFound("nobody is there", 0.3), SETTINGS.seek_s + 1)
    assert isinstance(end, GiveUp) and end.exit_code == EXIT_GROUP
    assert "the last one that answered refused this node: other tokens" in end.reason


def test_each_wait_reason_is_reported_once() -> None:
    """The note comes after a second, not before."""
    played = Played()
    assert played.step(NothingFound("a", 0.2)) == []
    (said,) = played.step(NothingFound("a", 0.2), 1.0)
    assert said == Say("waiting for the coordinator at there: a")
    assert played.step(NothingFound("a", 0.2), 1.0) == []
    assert len(played.step(NothingFound("b", 0.2), 1.0)) == 1


def test_every_state_explains_itself_and_left_is_final() -> None:
    played = Played()
    assert "looking for the coordinator at there" in played.link.explain(played.now)
    played.step(Opened("x"))
    assert "has not yet confirmed" in played.link.explain(played.now)
    played.step(Heard(confirms_lease=True))
    assert "connected" in played.link.explain(played.now)
    played.step(Hosting(FOR_EVER))
    assert "coordinates" in played.link.explain(played.now)
    assert played.step(Left()) == [Disconnect()]
    assert "left" in played.link.explain(played.now)
    assert played.step(Opened("x")) == played.step(Tick(), 9) == []


@pytest.mark.parametrize("how", ["closed", "silent", "hosting"])
def test_no_coordinator_is_sought_after_the_job(how: str) -> None:
    """It would coordinate another run of the job, where no workers ever start on this node."""
    played = Played().connected()
    if how == "hosting":
        played.step(Hosting(FOR_EVER))
    assert played.step(JobOver()) == []
    assert played.link.state is not LinkState.OVER  # workers may still be stopping
    if how == "closed":
        effects = played.lost()
    elif how == "silent":
        effects = silent_until(played, 12.0)
    else:
        effects = played.step(SteppedDown())
    kinds = {type(each) for each in effects}
    assert Disconnect in kinds and not kinds & {Seek, Say}
    assert played.link.state is LinkState.OVER and played.link.deadline() is None
