"""An agent's link to the coordinator: leases, timeouts and retries, tested as pure steps."""

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
    """A link, the current time, and the effects it requested."""

    def __init__(self) -> None:
        self.now = 100.0
        self.link = Link(SETTINGS, self.now)

    def step(self, event: Event, seconds: float = 0.0) -> list[Effect]:
        """Let time pass, then process an event."""
        self.now += seconds
        effects = self.link.step(event, self.now)
        self.link.check()
        return effects

    def connected(self) -> "Played":
        """Bring the link to the state CONNECTED, with a lease that starts now."""
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


def test_lease_starts_when_its_heartbeat_is_sent() -> None:
    """The lease doesn't depend on how late the echo arrives."""
    played = Played().connected()
    effects = played.step(Tick(), 0.5)
    sent_at = played.now
    assert SendHeartbeat(3, over_connection=True, as_datagram=False) in effects
    assert played.step(Echoed(3), 8.0) == [LetWorkersRun(sent_at + LEASE_S)]
    assert played.step(Echoed(3)) == []  # a repeated echo


def test_heartbeat_echo_does_not_renew_lease_before_confirmation() -> None:
    """A node whose workers belong to a generation has to wait for Confirm. Stop doesn't confirm
    anything.
    """
    played = Played()
    played.step(Tick())
    played.step(Opened("x"))
    assert played.step(Echoed(1), 0.01) == []
    assert played.step(Heard(confirms_lease=False)) == []
    assert played.link.state is LinkState.JOINING
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(100.0 + LEASE_S)]


def test_new_connection_sends_datagram_heartbeats_until_one_is_echoed() -> None:
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


def test_overdue_heartbeat_echo_triggers_faster_heartbeats() -> None:
    """Three datagrams are sent immediately, then one every 50 ms."""
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
    """Keep the coordinator silent, and return the link's effects."""
    effects, end = list[Effect](), played.now + seconds
    while (due := played.link.deadline()) is not None and due <= end:
        effects += played.step(Tick(), due - played.now)
    played.now = end
    return effects


def test_agent_searches_for_silent_coordinator_while_still_connected() -> None:
    """The first attempt is after 1.5 s, and the next ones every 2 s. Meanwhile the workers' lease
    keeps running.
    """
    played = connected_with_datagrams()
    seeks = [each for each in silent_until(played, 9.4) if isinstance(each, Seek)]
    assert seeks == [Seek(beside=True)] * 4
    assert played.link.state is LinkState.CONNECTED


def slowed(extra_s: float) -> Played:
    """Return a connected link whose coordinator has asked for a longer interval."""
    played = connected_with_datagrams()
    played.step(Tick(), 0.5)
    played.step(Echoed(4, extra_s=extra_s))
    played.step(Tick(), 0.5)
    played.step(Echoed(5, extra_s=extra_s))
    return played


def test_heartbeat_interval_from_echo_applies_after_the_next_heartbeat() -> None:
    played = slowed(1.5)
    assert played.link.deadline() == pytest.approx(played.now + 2.0)
    assert played.step(Tick(), 2.0) == [SendHeartbeat(6, over_connection=True, as_datagram=False)]
    assert played.link.deadline() == pytest.approx(played.now + 2.0)


def test_shorter_heartbeat_interval_applies_immediately() -> None:
    """The coordinator expects the next heartbeat earlier."""
    played = slowed(1.5)
    played.step(Tick(), 2.0)
    played.step(Echoed(6), 0.1)
    assert played.link.deadline() == pytest.approx(played.now + 0.5)


def test_datagram_echo_does_not_change_heartbeat_interval() -> None:
    played = slowed(1.5)
    played.step(Tick(), 2.0)
    played.step(Echoed(6, over_connection=False), 0.1)
    assert played.link.deadline() == pytest.approx(played.now + 1.9)


def test_new_connection_starts_at_the_normal_heartbeat_rate() -> None:
    played = slowed(1.5)
    played.lost()
    played.step(Tick(), 1.0)
    played.step(Opened("10.0.0.2:1"))
    assert played.link.deadline() == pytest.approx(played.now + 0.5)


def test_search_for_silent_coordinator_starts_later_if_heartbeats_are_slow() -> None:
    """The first heartbeat without an echo is sent 2 s after the last one. The next is sent another
    2 s later, and counts as late.
    """
    played = slowed(1.5)
    effects = silent_until(played, 3.9)
    assert effects == [SendHeartbeat(6, over_connection=True, as_datagram=False)]
    effects = silent_until(played, 0.2)
    assert Seek(beside=True) in effects
    assert any(isinstance(each, SendHeartbeat) and each.as_datagram for each in effects)
    assert played.link.state is LinkState.CONNECTED


def test_slow_heartbeats_are_not_mistaken_for_a_silent_coordinator() -> None:
    """A preempted node acts on its own if no coordinator responds."""
    played = slowed(1.5)
    assert played.link.unheard_s(played.now + 2.0) == pytest.approx(0.5)


def test_second_connection_replaces_a_silent_connection() -> None:
    """The coordinator at the other end has to confirm the workers. Until then their lease is the
    one from the first connection.
    """
    played = connected_with_datagrams()
    silent_until(played, 3.0)
    assert not any(isinstance(each, LetWorkersRun) for each in played.step(Opened("10.0.0.2:1")))
    assert played.link.state is LinkState.JOINING
    assert LetWorkersRun(played.now + LEASE_S) in played.step(Heard(confirms_lease=True))


def test_second_connection_refused_by_a_remote_host_shortens_lease() -> None:
    """A firewall may block this node's connections in such a way that the coordinator considers
    the node dead.
    """
    played = connected_with_datagrams()
    silent_until(played, 1.5)
    (lease,) = played.step(SecondFailed(Refusal.HINT))
    assert lease == LetWorkersRun(played.now + 5.0)
    assert played.step(SecondFailed(Refusal.NOTHING), 1.0) == []


def test_refused_second_connection_is_retried_immediately() -> None:
    """A refusal shows that the network works again, so another host may be coordinating now."""
    played = connected_with_datagrams()
    silent_until(played, 1.5)
    played.step(SecondFailed(Refusal.HINT))
    assert Seek(beside=True) in silent_until(played, 0.3)


def test_coordinator_is_lost_when_second_connection_breaks() -> None:
    """The reported search time counts from that moment, not from this node's first search."""
    played = connected_with_datagrams()
    silent_until(played, 3.0)
    played.step(Opened("10.0.0.2:1"))
    effects = played.lost()
    assert CoordinatorLost() in effects
    assert played.link.explain(played.now).endswith("for 0 s")


def test_datagram_echoes_alone_do_not_keep_a_connection_alive() -> None:
    """Datagram echoes renew the lease, but messages can only arrive over the connection."""
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


def test_agent_gives_up_on_coordinator_that_stays_silent() -> None:
    played = connected_with_datagrams()
    effects = silent_until(played, 10.2)
    assert Disconnect() in effects and effects[-2:] == [CoordinatorLost(), Seek()]
    assert any("no heartbeat from it for 10." in str(each) for each in effects)
    assert played.link.state is LinkState.SEEKING


def test_agent_suspension_does_not_count_as_coordinator_silence() -> None:
    """The link gives up only if the coordinator stays silent for another full timeout."""
    played = connected_with_datagrams()
    played.step(Tick(), 9.9)  # at least half a second late; a message may have been missed
    played.step(Tick(), 1.0)
    assert played.link.state is LinkState.CONNECTED
    assert Disconnect() in silent_until(played, 10.0)


def test_late_echoes_keep_connection_alive_without_datagrams() -> None:
    """A heartbeat goes over the connection in every interval, even alongside datagrams."""
    played = Played().connected()
    sent: list[tuple[float, int]] = []
    leased_until = played.now + LEASE_S
    for _ in range(1000):  # 50 s in total; each echo takes 0.9 s, nearly two intervals
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


def test_agent_waits_before_reconnecting_to_coordinator_that_hangs_up() -> None:
    """If the connection had lasted for a while, the search starts immediately."""
    played = Played().connected()
    assert not any(isinstance(effect, Seek) for effect in played.lost(seconds=0.1))
    assert played.link.deadline() == played.now + RETRY_S
    played = Played().connected()
    assert isinstance(played.lost(seconds=1.0)[-1], Seek)


def test_connection_refused_by_the_local_host_renews_unexpired_lease() -> None:
    """The refusal proves that no process coordinates there. An expired lease stays expired."""
    for seconds, renewed in ((0.5, True), (LEASE_S + 0.1, False)):
        played = Played().connected()
        played.lost()
        effects = played.lost(Refusal.PROOF, seconds)
        assert (LetWorkersRun(played.now + LEASE_S) in effects) == renewed


def test_connection_refused_by_a_remote_host_shortens_lease() -> None:
    """A firewall may have refused the connection, and may also have told the coordinator that this
    node is gone.
    """
    played = Played().connected()
    played.lost()
    until = played.now + 1.0 + REFUSALS_S
    assert LetWorkersRun(until) in played.lost(Refusal.HINT, 1.0)
    assert not any(isinstance(each, LetWorkersRun) for each in played.lost(Refusal.HINT, 1.0))
    played.step(Opened("x"))
    assert LetWorkersRun(played.now + LEASE_S) in played.step(Heard(confirms_lease=True))


def test_refusal_after_unconfirmed_coordinator_does_not_renew_lease() -> None:
    """The coordinator ended before it had confirmed this node's workers."""
    played = Played().connected()
    played.lost()
    played.step(Opened("x"), 0.1)
    played.lost()
    assert not any(isinstance(each, LetWorkersRun) for each in played.lost(Refusal.PROOF, 0.1))


def test_workers_may_be_superseded_after_their_lease() -> None:
    played = Played().connected()
    assert not played.link.may_be_superseded(played.now + LEASE_S - 0.1)
    assert played.link.may_be_superseded(played.now + LEASE_S)


def test_recovering_coordinators_dont_renew_a_lease_one_after_the_other() -> None:
    """Each one lets the workers run, but other nodes may have continued in the meantime."""
    played = Played().connected()
    ends = played.now + LEASE_S
    for _ in range(3):
        played.lost(seconds=1.0)
        played.step(Opened("x"))
        played.step(Echoed(1))
        granted = played.step(Heard(confirms_lease=True, recovers=True), 1.0)
        assert granted == [LetWorkersRun(played.now - 1.0 + LEASE_S)]
        assert not played.link.may_be_superseded(ends - 0.1)
        assert played.link.may_be_superseded(ends)
    played.step(Heard(confirms_lease=True))
    assert not played.link.may_be_superseded(ends)


def test_recovering_coordinator_in_this_process_doesnt_prove_that_nobody_continued() -> None:
    played = Played().connected()
    ends = played.now + LEASE_S
    played.lost()
    played.step(Hosting(FOR_EVER), 0.5)
    assert played.step(Heard(confirms_lease=True, recovers=True)) == [LetWorkersRun(FOR_EVER)]
    assert played.link.may_be_superseded(ends)
    played.step(Heard(confirms_lease=True))
    assert not played.link.may_be_superseded(ends)


@pytest.mark.parametrize("after_s", [0.5, LEASE_S + 0.5])
def test_lease_of_new_coordinators_own_workers_waits_for_the_group(after_s: float) -> None:
    """Other nodes may have continued without this one before it became the coordinator."""
    played = Played().connected()
    played.lost()
    assert played.step(Hosting(FOR_EVER), after_s) == [Disconnect()]
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(FOR_EVER)]


def test_endpoint_host_lease_counts_from_last_node_that_responded() -> None:
    """The lease starts only once the generation has been confirmed, and is still valid after the
    host has stepped down.
    """
    played = Played().connected()
    played.lost()
    assert played.step(Hosting(110.0), 0.5) == [Disconnect()]
    assert played.step(Heard(confirms_lease=True)) == [LetWorkersRun(110.0 + LEASE_S)]
    assert played.step(Hosting(111.0), 1.0) == [LetWorkersRun(111.0 + LEASE_S)]
    assert played.step(SteppedDown(3.0), 1.0) == [LetWorkersRun(played.now + LEASE_S)]
    assert played.link.state is LinkState.SEEKING
    assert played.link.deadline() == played.now + 3.0


def test_retry_delay_depends_on_outcome_of_last_attempt() -> None:
    """The delay is short if no coordinator was found, longer if a peer never answered, and zero if
    an established connection was lost.
    """
    played = Played()
    assert played.step(Tick()) == [Seek()]
    assert played.link.deadline() is None
    assert played.step(Tick(), 50) == []
    played.step(Broken("refused"))
    assert played.link.state is LinkState.OVER  # 50 s exceed the limit
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


def test_agent_gives_up_if_no_coordinator_is_found_before_timeout() -> None:
    """The timeout depends on whether a coordinator was there before."""
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
    """The coordinator may belong to a previous attempt that is about to end. After that, only the
    user can help.
    """
    played = Played()
    played.step(Broken("other tokens", turned_away=True))
    played.link._search.since = played.now + TURNED_AWAY_S
    assert played.link.turned_away == "other tokens"
    played.step(Broken("other tokens", turned_away=True), TURNED_AWAY_S)
    (end,) = played.step(Broken("other tokens", turned_away=True), 1)
    assert isinstance(end, GiveUp) and end.exit_code == EXIT_USAGE


def test_error_on_giving_up_names_last_rejection() -> None:
    played = Played()
    played.step(Broken("other tokens", turned_away=True))
    (end,) = played.step(NothingFound("nobody is there", 0.3), SETTINGS.seek_s + 1)
    assert isinstance(end, GiveUp) and end.exit_code == EXIT_GROUP
    assert "the last one that responded refused this node: other tokens" in end.reason


def test_agent_reports_each_wait_reason_once() -> None:
    """The note appears after one second, not before."""
    played = Played()
    assert played.step(NothingFound("a", 0.2)) == []
    (said,) = played.step(NothingFound("a", 0.2), 1.0)
    assert said == Say("waiting for the coordinator at there: a")
    assert played.step(NothingFound("a", 0.2), 1.0) == []
    assert len(played.step(NothingFound("b", 0.2), 1.0)) == 1


def test_every_link_state_has_an_explanation_and_left_is_final() -> None:
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
def test_agent_searches_for_no_coordinator_after_the_job_has_ended(how: str) -> None:
    """A new coordinator could only belong to another run of the job, and this node won't start
    workers for that.
    """
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
