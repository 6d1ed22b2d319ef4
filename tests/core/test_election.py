"""Coordinator election: two leases never overlap, and a connected majority gets one.

A failing simulation prints its seed; `simulate(seed)` replays it.
"""

import pytest
from conftest import long
from electors import World, simulate

from relight.core.link.election import (
    BallotReceived,
    BecomeCoordinator,
    Election,
    ElectionState,
    SendBallot,
)
from relight.core.link.votes import (
    ALONE,
    LEAD,
    PROBE,
    VOTE,
    VoteRelease,
    VoteReply,
    VoteRequest,
    is_majority,
)
from relight.events.event_types import Tick

SEEDS = 200
UNKNOWN = "no reply yet from {}, which may know of an earlier coordinator"
EARLIER = "workers of an earlier coordinator may still be running"


@pytest.mark.parametrize("start", [0, 50, *map(long, range(100, SEEDS, 50))])
def test_random_faults_never_elect_two_coordinators(start: int) -> None:
    """Whatever faults occur, two hosts never coordinate concurrently, and a connected majority
    elects one within 3 s.
    """
    for seed in range(start, start + 50):
        try:
            simulate(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


def quiet_world(size: int, *, alone: bool = False, seed: int = 1) -> World:
    """Return a network without faults, on which no host has started."""
    return World(seed, size, alone=alone)


def started_world(size: int, *, alone: bool = False) -> World:
    world = quiet_world(size, alone=alone)
    for i in range(size):
        world.start(i)
    world.run(3.0)
    return world


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_first_host_is_elected_if_all_hosts_start_together(size: int) -> None:
    """The first host then stays the coordinator."""
    world = started_world(size)
    assert world.leaders() == [0]
    world.run(20.0)
    assert world.leaders() == [0]
    assert world.effects["BecomeCoordinator"] == 1


def test_single_host_elects_itself_immediately() -> None:
    elector = Election(["host0"], 0, "a", 5.0)
    assert elector.step(Tick(), 5.0) == [BecomeCoordinator()]
    assert elector.coordinates(5.5)


def test_next_host_takes_over_after_a_crash_and_remains_coordinator() -> None:
    """When the crashed host returns, it becomes a follower."""
    world = started_world(3)
    world.crash(0)
    world.run(5.0)
    assert world.leaders() == [1]
    world.start(0)
    world.run(15.0)
    assert world.leaders() == [1]
    assert world.effects["BecomeCoordinator"] == 2
    assert world.hosts[0].elector is not None
    assert world.hosts[0].elector.coordinator(world.hosts[0].clock(world.now)) == 1


@pytest.mark.parametrize(("size", "dead", "next_one"), [(4, (0,), 1), (5, (0, 1), 2), (2, (1,), 0)])
def test_lowest_numbered_live_host_in_majority_takes_over(
    size: int, dead: tuple[int, ...], next_one: int
) -> None:
    world = started_world(size)
    for i in dead:
        world.crash(i)
    world.run(6.0)
    assert world.leaders() == [next_one]


@pytest.mark.parametrize(("size", "dead"), [(2, (0,)), (3, (0, 1)), (4, (0, 1)), (5, (1, 2, 4))])
def test_minority_never_elects_a_coordinator(size: int, dead: tuple[int, ...]) -> None:
    """The old coordinator's lease ends within vote_s."""
    world = started_world(size)
    for i in dead:
        world.crash(i)
    world.run(4.1)
    assert world.leaders() == []
    world.run(30.0)
    assert world.leaders() == []
    assert world.effects["BecomeCoordinator"] == 1


def test_even_split_is_won_by_the_half_with_the_first_host() -> None:
    """With four hosts, two of them are a majority only if they include the first."""
    world = started_world(4)
    world.cut = {(a, b) for a in range(4) for b in range(4) if (a < 2) != (b < 2)}
    world.run(10.0)
    assert world.leaders() == [0]


@pytest.mark.parametrize("hosts", range(1, 8))
def test_any_two_majorities_share_a_host(hosts: int) -> None:
    """A set of hosts and the remaining ones are never both majorities."""
    subsets = [{i for i in range(hosts) if bits >> i & 1} for bits in range(1 << hosts)]
    deciding = [s for s in subsets if is_majority(s, hosts)]
    assert all(a & b for a in deciding for b in deciding)
    assert all(is_majority(s, hosts) != is_majority(set(range(hosts)) - s, hosts) for s in subsets)


def test_host_that_receives_no_messages_does_not_disturb_the_election() -> None:
    """The host receives nothing, but its own messages arrive."""
    world = quiet_world(3)
    world.cut = {(1, 0), (2, 0)}
    for i in range(3):
        world.start(i)
    world.run(3.0)
    assert world.leaders() == [1]
    world.run(20.0)
    assert world.effects["BecomeCoordinator"] == 1


def test_previously_frozen_coordinator_steps_down_in_its_first_step() -> None:
    """The coordinator steps down before it sends any message."""
    world = started_world(3)
    world.hosts[0].frozen = True
    world.run(6.0)
    assert world.leaders() == [1]
    elector = world.hosts[0].elector
    assert elector is not None
    assert elector.state is ElectionState.COORDINATOR
    effects = elector.step(Tick(), world.hosts[0].clock(world.now))
    sent = [e.message for e in effects if isinstance(e, SendBallot)]
    assert elector.state is not ElectionState.COORDINATOR
    assert all(isinstance(m, VoteRelease) or m.stage == PROBE for m in sent)


def voter(now: float = 0.0) -> Election:
    return Election(["host0", "host1", "host2"], 2, "v", now)


def answer(elector: Election, request: VoteRequest, now: float) -> VoteReply | None:
    effects = elector.step(BallotReceived(request), now)
    elector.check()
    replies = [e.message for e in effects if isinstance(e, SendBallot)]
    return next((m for m in replies if isinstance(m, VoteReply)), None)


def test_restarted_voter_does_not_vote_twice() -> None:
    """A host that votes, crashes and restarts can't vote again while its first vote is valid."""
    first = Election(["host0", "host1", "host2"], 2, "a", 0.0)
    reply = answer(first, VoteRequest(0, "x", 9.0, VOTE), 1.5)
    assert reply is not None
    assert reply.granted
    again = Election(["host0", "host1", "host2"], 2, "b", 1.51)
    for now, granted in ((1.6, False), (2.5, False), (2.52, True)):
        reply = answer(again, VoteRequest(1, "y", now, VOTE), now)
        assert reply is not None
        assert reply.granted == granted


@pytest.mark.parametrize(
    ("candidate", "stage", "after", "granted", "holder", "leads"),
    [
        (1, VOTE, 0.5, False, 0, True),
        (1, PROBE, 0.5, False, 0, True),
        (1, LEAD, 0.5, False, 1, True),
        (0, VOTE, 0.5, True, 0, True),
        (1, VOTE, 1.1, True, 1, False),
        (1, PROBE, 1.1, True, -1, False),
    ],
)
def test_vote_stays_with_its_candidate_until_it_expires(
    candidate: int, stage: str, after: float, granted: bool, holder: int, leads: bool
) -> None:
    """Once the vote has expired, another candidate can get it."""
    elector = voter()
    first = answer(elector, VoteRequest(0, "a", 70.0, LEAD), 1.2)
    assert first is not None
    assert first.granted
    reply = answer(elector, VoteRequest(candidate, "b", 80.0, stage), 1.2 + after)
    assert reply is not None
    assert (reply.granted, reply.holder, reply.leads) == (granted, holder, leads)


def test_stale_vote_requests_are_ignored() -> None:
    """A request that was duplicated, or overtaken by a later one, extends nothing."""
    elector = voter()
    assert answer(elector, VoteRequest(0, "a", 70.0, LEAD), 1.2) is not None
    assert answer(elector, VoteRequest(0, "a", 70.0, LEAD), 1.9) is None
    assert answer(elector, VoteRequest(0, "a", 69.0, VOTE), 1.9) is None
    reply = answer(elector, VoteRequest(1, "b", 5.0, VOTE), 2.21)
    assert reply is not None
    assert reply.granted


def test_released_vote_is_available_to_other_candidates() -> None:
    """The next candidate gets the vote immediately. A stale release frees nothing."""
    elector = voter()
    answer(elector, VoteRequest(1, "a", 70.0, VOTE), 1.2)
    elector.step(BallotReceived(VoteRelease(1, "a", 69.0)), 1.25)
    elector.step(BallotReceived(VoteRelease(1, "other", 99.0)), 1.25)
    reply = answer(elector, VoteRequest(0, "b", 5.0, VOTE), 1.3)
    assert reply is not None
    assert not reply.granted
    elector.step(BallotReceived(VoteRelease(1, "a", 70.0)), 1.35)
    reply = answer(elector, VoteRequest(0, "b", 6.0, VOTE), 1.4)
    assert reply is not None
    assert reply.granted


def candidate() -> tuple[Election, float]:
    """Return the first of three hosts, and the time of its vote request."""
    elector = Election(["host0", "host1", "host2"], 0, "me", 0.0)
    elector.step(Tick(), 1.0)
    promise = VoteReply(1, 0, "me", 1.0, PROBE, True, -1, False, 0.0)
    effects = elector.step(BallotReceived(promise), 1.01)
    elector.check()
    assert SendBallot(1, VoteRequest(0, "me", 1.01, VOTE)) in effects
    return elector, 1.01


@pytest.mark.parametrize(
    ("change", "now", "elected"),
    [
        ({}, 1.3, True),
        ({"granted": False}, 1.3, False),
        ({"incarnation": "before"}, 1.3, False),
        ({"candidate": 1}, 1.3, False),
        ({"stage": PROBE}, 1.3, False),
        ({"sent": 0.05}, 1.3, False),
        ({"sent": 1.4}, 1.3, False),
        ({"voter": 0}, 1.3, False),
        ({"voter": 3}, 1.3, False),
        ({"voter": -1}, 1.3, False),
    ],
)
def test_only_a_fresh_reply_that_grants_the_vote_counts(
    change: dict, now: float, elected: bool
) -> None:
    """The reply must come from another host, in response to this process's own request."""
    elector, asked = candidate()
    reply = VoteReply(1, 0, "me", asked, VOTE, True, 0, False, 0.0)._replace(**change)
    effects = elector.step(BallotReceived(reply), now)
    elector.check()
    assert (BecomeCoordinator() in effects) == elected


def test_coordinator_lease_starts_with_the_vote_request_not_the_reply() -> None:
    """The lease ends earlier than the vote, by a tenth of vote_s."""
    elector, asked = candidate()
    elector.step(
        BallotReceived(VoteReply(1, 0, "me", asked, VOTE, True, 0, False, 0.0)), asked + 0.4
    )
    assert elector.lease_until() == pytest.approx(asked + 0.9)
    assert elector.coordinates(asked + 0.89)
    assert not elector.coordinates(asked + 0.91)


def test_late_reply_to_a_withdrawn_vote_request_is_ignored() -> None:
    """A late reply to a request from an earlier round is void, as its vote has been released."""
    elector, asked = candidate()
    (release,) = {e.message for e in elector.step(Tick(), 1.72) if isinstance(e, SendBallot)}
    assert release == VoteRelease(0, "me", 1.72)
    elector.step(Tick(), 1.83)
    elector.step(BallotReceived(VoteReply(1, 0, "me", 1.83, PROBE, True, -1, False, 0.0)), 1.84)
    reply = VoteReply(1, 0, "me", asked, VOTE, True, 0, False, 0.0)
    assert BecomeCoordinator() not in elector.step(BallotReceived(reply), 1.85)
    assert BecomeCoordinator() in elector.step(BallotReceived(reply._replace(sent=1.84)), 1.86)


def test_voter_supports_active_coordinator_it_did_not_vote_for() -> None:
    """While a voter hears from a coordinator, it votes for no one else, even if its own vote is
    free.
    """
    elector = voter()
    answer(elector, VoteRequest(1, "b", 5.0, VOTE), 1.2)
    reply = answer(elector, VoteRequest(0, "a", 70.0, LEAD), 1.3)
    assert reply is not None
    assert not reply.granted
    elector.step(BallotReceived(VoteRelease(1, "b", 5.0)), 1.4)
    reply = answer(elector, VoteRequest(1, "b", 5.3, VOTE), 1.5)
    assert reply is not None
    assert (reply.granted, reply.holder, reply.leads) == (False, 0, True)


def test_candidate_yields_to_a_lower_numbered_host() -> None:
    """When a lower-numbered host requests votes, the candidate releases its own votes and votes for
    that host.
    """
    elector = Election(["host0", "host1", "host2"], 2, "me", 0.0)
    elector.step(Tick(), 1.0)
    elector.step(BallotReceived(VoteReply(1, 2, "me", 1.0, PROBE, True, -1, False, 0.0)), 1.01)
    effects = elector.step(Tick(), 1.35)  # the lower host that answered has had its chance
    assert SendBallot(0, VoteRequest(2, "me", 1.35, VOTE)) in effects
    effects = elector.step(BallotReceived(VoteRequest(0, "x", 7.0, VOTE)), 1.4)
    elector.check()
    assert SendBallot(1, VoteRelease(2, "me", 1.4)) in effects
    replies = [e.message for e in effects if isinstance(e.message, VoteReply)]
    assert [(reply.candidate, reply.granted) for reply in replies] == [(0, True)]


def test_resumed_candidate_does_not_grant_its_vote_twice() -> None:
    """The candidate abandons its candidacy when it grants its vote to another candidate."""
    elector, _ = candidate()
    reply = answer(elector, VoteRequest(1, "b", 5.0, VOTE), 3.0)
    assert reply is not None
    assert reply.granted
    reply = answer(elector, VoteRequest(2, "c", 7.0, VOTE), 3.1)
    assert reply is not None
    assert not reply.granted


def test_takeover_alone_allows_a_coordinator_without_a_majority() -> None:
    """The host takes over after three times vote_s, not earlier."""
    world = started_world(2, alone=True)
    world.crash(0)
    world.run(5.7)
    assert world.leaders() == []
    world.run(7.5)
    assert world.leaders() == [1]
    world.start(0)
    world.run(20.0)
    assert world.leaders() == [1]


def test_coordinator_with_a_majority_remains_after_a_split_heals() -> None:
    """After a split with two coordinators, as allowed by the user, one steps down."""
    world = started_world(3, alone=True)
    world.cut = {(0, 1), (0, 2), (1, 0), (2, 0)}
    world.run(15.0)
    assert world.leaders() == [0, 1]
    world.cut.clear()
    world.run(18.0)
    assert world.leaders() == [1], "the one with a majority stays"


def test_previously_frozen_host_listens_before_taking_over_alone() -> None:
    """A host that was frozen for a minute doesn't mistake that silence for the loss of
    the others.
    """
    world = started_world(2, alone=True)
    world.hosts[1].frozen = True
    world.run(60.0)
    world.hosts[1].waiting.clear()
    world.thaw(1)
    world.run(70.0)
    assert world.leaders() == [0]
    assert world.effects["BecomeCoordinator"] == 1


def test_takeover_alone_converges_on_one_coordinator_after_network_heals() -> None:
    """Convergence takes a few seconds."""
    for seed in range(15):
        world = simulate(seed, alone=True)
        world.cut.clear()
        for i, host in enumerate(world.hosts):
            if host.frozen:
                world.thaw(i)
        world.run(world.now + 8)
        assert len(world.leaders()) == 1, f"seed {seed}: {world.leaders()}"


@pytest.mark.parametrize(
    ("size", "needed"),
    [
        (2, "host0, the first of the endpoint's 2 hosts, is needed to elect a coordinator"),
        (3, "2 of the endpoint's 3 hosts are needed to elect a coordinator"),
        (4, "2 of the endpoint's 4 hosts including host0, or 3 without it, are needed to elect"),
    ],
)
def test_election_explanation_names_unresponsive_hosts(size: int, needed: str) -> None:
    """Without a coordinator, the explanation also states how many hosts are needed."""
    world = started_world(size)
    for i in range(size - 1):
        world.crash(i)
    world.run(8.0)
    host = world.hosts[size - 1]
    assert host.elector is not None
    text = host.elector.explain(host.clock(world.now))
    assert text.startswith(needed)
    silent = ", ".join(f"host{i}" for i in range(size - 1))
    assert text.endswith(f"; no response from {silent}")


def test_every_host_knows_which_host_is_the_coordinator() -> None:
    world = started_world(3)
    texts = [h.elector.explain(h.clock(world.now)) for h in world.hosts if h.elector]
    assert texts == ["this host, host0, is the coordinator"] + ["host0 is the coordinator"] * 2


def test_coordinator_elected_by_its_own_vote_alone_is_not_replaced() -> None:
    """Other hosts learn that a coordinator relies on its own vote alone, and don't replace it."""
    elector = Election(["host0", "host1"], 1, "me", 0.0, alone=True)
    now = 0.0
    while elector.state is not ElectionState.COORDINATOR:
        now = elector.deadline()
        effects = elector.step(Tick(), now)
    assert 3.0 <= now <= 3.6
    assert SendBallot(0, VoteRequest(1, "me", now, ALONE)) in effects
    assert elector.explain(now).endswith("by its own vote alone")


@pytest.mark.parametrize(("delay_s", "loss", "most_s"), [(0.2, 0.1, 0.0), (0.25, 0.2, 2.0)])
def test_coordinator_remains_despite_high_latency_and_packet_loss(
    delay_s: float, loss: float, most_s: float
) -> None:
    """Messages without a reply are soon sent again."""
    world = started_world(3)
    world.delay, world.drop = (delay_s, delay_s + 0.01), loss
    world.run(world.now + 5.0)
    without_s = 0.0
    for _ in range(900):
        world.run(world.now + 0.05)
        without_s += 0.0 if world.leaders() else 0.05
    assert without_s <= most_s


def test_coordinator_knows_whether_another_preceded_it() -> None:
    """The coordinator learns this from its voters, even if it started after the previous
    coordinator had exited.
    """
    world = started_world(3)
    first = world.hosts[0].elector
    assert first is not None and not first.predecessor()
    world.crash(0)
    world.crash(1)
    world.start(1)
    world.run(10.0)
    assert world.leaders() == [1]
    second = world.hosts[1].elector
    assert second is not None and second.predecessor()


def test_restarted_first_host_of_two_asks_the_second_host_about_a_predecessor() -> None:
    """The first host's own vote elects it, so it may not have received a reply yet."""
    world = started_world(2)
    world.crash(0)
    world.delay = (0.2, 0.3)
    world.start(0)
    while not world.leaders():
        world.run(world.now + 0.01)
    first = world.hosts[0].elector
    assert first is not None
    assert first.predecessor() == UNKNOWN.format(first.hosts[1])
    world.run(world.now + 1.0)
    assert first.predecessor() == EARLIER  # the second host knows it

    for host in (0, 1):
        world.crash(host)
    world.run(world.now + 1.0)  # messages of the old process may still arrive
    for host in (0, 1):
        world.start(host)
    world.run(world.now + 3.0)
    first = world.hosts[0].elector
    assert first is not None and world.leaders() == [0] and not first.predecessor()


def test_denial_before_this_candidacy_does_not_count() -> None:
    """Another host may have been the coordinator since then."""
    elector = Election(["h0", "h1", "h2"], 0, "me", 0.0)
    now, replies = 0.0, 0
    while not elector.coordinates(now) or elector.predecessor():
        now = elector.deadline()
        for effect in elector.step(Tick(), now):
            if isinstance(effect, SendBallot):
                elector.step(BallotReceived(reply_to(effect)), now)
                replies += 1
        assert replies < 100
    old = VoteReply(1, 0, "me", now, PROBE, granted=False, holder=-1, leads=False, age_s=0.0)
    while elector.state is not ElectionState.CANDIDATE:
        now = elector.deadline()
        elector.step(Tick(), now)
    elector.step(BallotReceived(old), now)
    assert elector.predecessor() == UNKNOWN.format("h1, h2")


def reply_to(effect: SendBallot) -> VoteReply:
    """Return the reply of a host that votes for the candidate and knows no coordinator."""
    candidate, incarnation, sent, stage = effect.message
    return VoteReply(
        effect.host, candidate, incarnation, sent, stage,
        granted=True, holder=-1, leads=False, age_s=0.0,
    )  # fmt: skip


def test_former_coordinator_tells_its_successor_about_itself() -> None:
    world = started_world(3)
    former, now = world.hosts[0].elector, world.hosts[0].clock(world.now)
    assert former is not None and former.coordinates(now)
    (ballot,) = former.step(BallotReceived(VoteRequest(1, "successor", 1.0, PROBE)), now)
    assert isinstance(ballot, SendBallot) and isinstance(ballot.message, VoteReply)
    assert ballot.message.knows_another
