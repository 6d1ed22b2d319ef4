"""Elects the coordinator among the hosts of a multi-host endpoint, based on leases.

Each host in the list has at most one elector, which is the agent that holds the endpoint's port on
that host. An elector is the coordinator for as long as it holds unexpired votes from a majority of
the hosts. If the number of hosts is even, half of the hosts form a majority if they include the
first host.

    FOLLOWER     a coordinator was seen, or this elector has just started
      | no coordinator was seen for `vote_s`                    -> CANDIDATE
    CANDIDATE    asks the others whether they would vote for it (PROBE; the answer is not binding).
                 If a majority would, it gives each host among them with a lower number a moment to
                 go first, then asks for votes
      | it holds votes from a majority                          -> COORDINATOR, BecomeCoordinator
      | a message from or about a coordinator arrives           -> FOLLOWER, votes are given back
      | a lower-numbered candidate asks for votes or holds one, or a majority is missing after
        0.7 of `vote_s` (votes.ROUND): it gives its votes back and probes again
    COORDINATOR  renews its votes four times per `vote_s`; no other host displaces it
      | its votes expire                                        -> FOLLOWER

`core/link/votes` describes how votes are given and counted. One-way links are harmless, because a
candidate asks for votes only after a majority has replied to its probes.

With `alone`, a host that has not seen a coordinator for three times `vote_s` needs only its own
vote. The user has to enable `alone` explicitly, because each half of a partitioned network may then
have a coordinator. When the halves are connected again, the coordinator without a majority steps
down. If neither coordinator has a majority, the one with the higher number steps down.

Invariants (`check`): A coordinator's lease is valid. A host that asks for votes or is the
coordinator has its own vote. A follower holds no votes. Without `alone`, no two hosts have valid
leases at the same time.

If this process was suspended, its lease may have expired, but the process notices this only in the
next step. Always call `coordinates` before acting as the coordinator.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from relight.base.text import format_names
from relight.core.link.votes import (
    ALONE,
    LEAD,
    PROBE,
    STAGGER,
    VOTE,
    Ballot,
    Campaign,
    Voter,
    VoteRelease,
    VoteReply,
    VoteRequest,
)
from relight.events.event_types import Tick

ALONE_AFTER = 3
"""How long a host must not have seen a coordinator before it may continue alone, as a multiple of
`vote_s`.
"""


class ElectionState(Enum):
    """This host's state in the election."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    COORDINATOR = "coordinator"


class BallotReceived(NamedTuple):
    """Event: a message arrived from another host in the list."""

    message: Ballot


Event = BallotReceived | Tick


class SendBallot(NamedTuple):
    """Effect: send a message to a host in the list. The message may get lost."""

    host: int
    message: Ballot


class BecomeCoordinator(NamedTuple):
    """Effect: this host becomes the coordinator for as long as `coordinates` returns True."""


Effect = SendBallot | BecomeCoordinator


class _Sightings:
    """When each of the other hosts, and the coordinator, was last seen alive.

    Args:
        now: the current time.
        none_until: the time until which no coordinator counts as seen.
        vote_s: how long a host may be silent before it counts as lost.
    """

    def __init__(self, now: float, none_until: float, vote_s: float) -> None:
        self.last_step = self.listening_since = now
        self.coordinator_at = none_until - vote_s
        """When this host last knew that a coordinator was alive."""
        self._vote_s = vote_s
        self._coordinator = -1
        self._host_at: dict[int, float] = {}
        self._last_heard = (-1, float("-inf"))
        """The coordinator from which this host last received a message directly, and when the
        message arrived.
        """

    def step(self, now: float) -> None:
        """Record that this process is running."""
        if now - self.last_step > 1.5 * self._vote_s:  # was suspended, so receive messages first
            self.listening_since = now
        self.last_step = now

    def lost_at(self) -> float:
        """Return when the coordinator counts as lost, unless it is seen before then."""
        return self.coordinator_at + self._vote_s

    def silent_since(self) -> float:
        """Return since when this host has been listening without seeing a coordinator."""
        return max(self.coordinator_at, self.listening_since)

    def host(self, host: int, now: float) -> None:
        """Record that a host is alive."""
        self._host_at[host] = now

    def is_silent(self, host: int, now: float) -> bool:
        """Return whether a host has been silent for `vote_s`."""
        return now - self._host_at.get(host, float("-inf")) >= self._vote_s

    def coordinator(self, now: float) -> int:
        """Return the coordinator, or -1 if unknown."""
        return self._coordinator if now - self.coordinator_at < self._vote_s else -1

    def latest(self, now: float) -> tuple[int, float]:
        """Return the coordinator that last sent a message directly to this host, or -1, and how
        many seconds ago that message arrived.
        """
        coordinator, at = self._last_heard
        return (coordinator, now - at) if now - at < self._vote_s else (-1, 0.0)

    def hear(self, coordinator: int, now: float) -> None:
        """Record that this host received a message from a coordinator directly."""
        self._last_heard = (coordinator, now)

    def see(self, coordinator: int, at: float) -> bool:
        """Record that a coordinator was alive at the time `at`. Return whether this is new
        information.
        """
        if at < self.coordinator_at:
            return False
        self._coordinator, self.coordinator_at = coordinator, at
        return True

    def forget_coordinator(self) -> None:
        """Forget the coordinator, because this host has been elected."""
        self._coordinator = -1
        self._last_heard = (-1, float("-inf"))

    def forget(self, host: int, now: float) -> None:
        """Record that a host is no longer the coordinator, if it was."""
        if self._last_heard[0] == host:
            self._last_heard = (-1, float("-inf"))
        if self._coordinator == host:
            self._coordinator = -1
            self.coordinator_at = min(self.coordinator_at, now - self._vote_s)


class _EarlierCoordinators:
    """What this host knows about coordinating processes other than itself, whose workers may still
    be running.

    Any two majorities share a host, but that host may have been restarted since. The first of two
    hosts, for example, is elected by its own vote, and then only the second host knows.
    """

    def __init__(self) -> None:
        self.was_self = False
        """Whether this process has coordinated."""
        self._incarnations: set[str] = set()
        """Up to two coordinating processes from which this host has received a message directly."""
        self._is_known_elsewhere = False
        """Whether another host knows of a different coordinating process."""
        self._stood_at = float("inf")
        """When this host last became a candidate."""
        self._denied: set[int] = set()
        """The hosts that, since then, have denied that there was another coordinating process."""

    def hear(self, incarnation: str) -> None:
        """Record that a process has sent a message as coordinator."""
        if len(self._incarnations) < 2:
            self._incarnations.add(incarnation)

    def knows_another(self, incarnation: str) -> bool:
        """Return whether a process other than this candidate has coordinated."""
        return self.was_self or bool(self._incarnations - {incarnation})

    def stand(self, now: float) -> None:
        """Record that this host is a candidate from now on. Earlier replies no longer count."""
        self._stood_at = now
        self._denied.clear()

    def take_reply(self, reply: VoteReply) -> None:
        """Record what another host knows."""
        self._is_known_elsewhere |= reply.knows_another
        if reply.sent >= self._stood_at:
            self._denied.add(reply.voter)

    def doubt(self, hosts: Sequence[str], me: int) -> str:
        """Return why another process may have been the coordinator, or "" if all other hosts have
        denied it since this host became a candidate.
        """
        if self._incarnations or self._is_known_elsewhere:
            return "workers of an earlier coordinator may still be running"
        others = [host for i, host in enumerate(hosts) if i not in {*self._denied, me}]
        if not others:
            return ""
        return f"no reply yet from {format_names(others)}, which may know of an earlier coordinator"


class Election:
    """The elector on one host.

    Args:
        hosts: the endpoint's hosts. The list and its order must be the same on all hosts.
        me: the index of this host.
        incarnation: a random string that identifies this process.
        now: the current time on this host's clock.
        vote_s: how long a vote counts. This time must be the same on all hosts.
        alone: whether one host may take over without a majority.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        me: int,
        incarnation: str,
        now: float,
        *,
        vote_s: float = 1.0,
        alone: bool = False,
    ) -> None:
        self.state = ElectionState.FOLLOWER
        self.hosts = tuple(hosts)
        self.me = me
        # If there is only one host, it can't have voted for another candidate.
        votes_from = now + vote_s if len(self.hosts) > 1 else now
        self._voter = Voter(votes_from, vote_s)
        self._campaign = Campaign(me, incarnation, len(self.hosts), vote_s)
        self._sightings = _Sightings(now, votes_from, vote_s)
        self._alone_after_s = (ALONE_AFTER + me * STAGGER) * vote_s if alone else float("inf")
        self._alone = False
        self._earlier = _EarlierCoordinators()
        self._effects: list[Effect] = []

    def predecessor(self) -> str:
        """Return why another process may have been the coordinator before this one, or "" if all
        other hosts have denied it since this host became a candidate.
        """
        return self._earlier.doubt(self.hosts, self.me)

    def step(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the effects.

        The following events are ignored: messages for another list of hosts or for an earlier
        incarnation, outdated requests, replies about votes that were given back, and early Ticks.
        """
        self._effects = []
        self._sightings.step(now)
        if self.state is ElectionState.COORDINATOR and self.lease_until() <= now:
            self._step_down(now)
        match event:
            case BallotReceived(VoteRequest() as request) if self._is_other(request.candidate):
                self._on_request(request, now)
            case BallotReceived(VoteReply() as reply) if self._is_other(reply.voter):
                if self._campaign.has_requested(reply):
                    self._on_reply(reply, now)
            case BallotReceived(VoteRelease() as release) if self._is_other(release.candidate):
                self._on_release(release, now)
        self._advance(now)
        return self._effects

    def deadline(self) -> float:
        """Return the time when the next Tick is due."""
        if self.state is ElectionState.COORDINATOR:
            return min(self._campaign.send_at, self.lease_until())
        if self.state is ElectionState.CANDIDATE:
            return self._campaign.send_at
        return self._stands_at()

    def coordinates(self, now: float) -> bool:
        """Return whether this host is the coordinator right now."""
        return self.state is ElectionState.COORDINATOR and now < self.lease_until()

    def lease_until(self) -> float:
        """Return the time until which this host holds enough votes, or minus infinity if it doesn't
        hold enough.
        """
        return self._campaign.own_vote_until if self._alone else self._campaign.majority_until

    def coordinator(self, now: float) -> int:
        """Return the index of the coordinator, or -1 if unknown."""
        if self.coordinates(now):
            return self.me
        return self._sightings.coordinator(now)

    def is_silent(self, host: int, now: float) -> bool:
        """Return whether another host has been silent for `vote_s`."""
        return self._sightings.is_silent(host, now)

    def explain(self, now: float) -> str:
        """Return a description of what this host is waiting for."""
        known = self.coordinator(now)
        if known == self.me:
            by = " by its own vote alone" if self._alone else ""
            return f"this host, {self.hosts[self.me]}, is the coordinator{by}"
        if known >= 0:
            return f"{self.hosts[known]} is the coordinator"
        silent = [
            host for i, host in enumerate(self.hosts) if i != self.me and self.is_silent(i, now)
        ]
        needed = _needed(self.hosts)
        if silent:
            return f"{needed}; no response from {', '.join(silent)}"
        left = self._voter.votes_from - now
        if left > 0:
            return f"{needed}; this host has just started and will vote in {left:.1f} s"
        return f"{needed}; all of them are responding and are electing one now"

    def check(self) -> None:
        """Assert the invariants."""
        is_coordinator = self.state is ElectionState.COORDINATOR
        asking = self._campaign.is_asking
        assert not asking or self.state is ElectionState.CANDIDATE
        assert self._voter.is_for(self.me) == (asking or is_coordinator)
        assert self._campaign.has_votes == (asking or is_coordinator)
        assert not self._alone or (self._alone_after_s < float("inf") and is_coordinator)
        last_step = self._sightings.last_step
        assert not is_coordinator or last_step < self.lease_until()
        self._campaign.check(last_step)
        assert self.deadline() > last_step

    def _is_other(self, index: int) -> bool:
        return 0 <= index < len(self.hosts) and index != self.me

    def _on_request(self, request: VoteRequest, now: float) -> None:
        candidate, incarnation, sent, stage = request
        if not self._voter.is_news(request):
            return
        self._sightings.host(candidate, now)
        if stage in (LEAD, ALONE):
            if self._alone and (stage == LEAD or candidate < self.me):
                self._step_down(now)
            self._earlier.hear(incarnation)
            if self.state is not ElectionState.COORDINATOR:
                self._sightings.hear(candidate, now)
                self._see(candidate, now, now)
        elif stage == VOTE and self._campaign.is_asking and candidate < self.me:
            self._return_votes(now)
        leader, age_s = self._sightings.latest(now)
        granted = self._voter.is_free_for(candidate, now) and leader in (-1, candidate)
        if granted and stage != PROBE:
            self._voter.grant(request, now)
        if self.state is ElectionState.COORDINATOR:
            leader = self.me
        holder = leader if leader >= 0 else self._voter.candidate(now)
        reply = VoteReply(
            self.me, candidate, incarnation, sent, stage, granted, holder, leader >= 0, age_s,
            knows_another=self._earlier.knows_another(incarnation),
        )  # fmt: skip
        self._effects.append(SendBallot(candidate, reply))

    def _on_reply(self, reply: VoteReply, now: float) -> None:
        campaign, holder = self._campaign, reply.holder
        is_coordinator = self.state is ElectionState.COORDINATOR
        self._sightings.host(reply.voter, now)
        self._earlier.take_reply(reply)
        if not campaign.add(reply, now):
            return
        if is_coordinator and reply.granted and self.lease_until() == campaign.own_vote_until:
            campaign.renew_later()
        if reply.granted or is_coordinator or not self._is_other(holder):
            return
        if reply.leads:
            self._see(holder, now - max(0.0, reply.age_s), now)
        elif campaign.is_asking and holder < self.me:
            self._return_votes(now)

    def _on_release(self, release: VoteRelease, now: float) -> None:
        if self._voter.release(release):
            self._sightings.host(release.candidate, now)
            self._sightings.forget(release.candidate, now)

    def _see(self, coordinator: int, at: float, now: float) -> None:
        """Record a live coordinator and stop being a candidate."""
        is_news = self._sightings.see(coordinator, at) and self._sightings.coordinator(now) >= 0
        if is_news and self.state is ElectionState.CANDIDATE:
            self._return_votes(now)
            self.state = ElectionState.FOLLOWER

    def _advance(self, now: float) -> None:
        """Carry out everything that is due."""
        campaign = self._campaign
        if self.state is ElectionState.FOLLOWER and now >= self._stands_at():
            self.state = ElectionState.CANDIDATE
            campaign.send_at = now
            self._earlier.stand(now)
        if self.state is ElectionState.CANDIDATE:
            is_free = self._voter.is_free_for(self.me, now)
            if not campaign.is_asking and campaign.is_ready(now, own_vote_is_free=is_free):
                campaign.ask(now)
                self._take_own_vote(now)
            if campaign.is_asking:
                if campaign.majority_until > now:
                    self._become_coordinator(now)
                elif campaign.has_failed(now):
                    self._return_votes(now)
        if self.state is ElectionState.CANDIDATE and self._may_go_alone(now):
            self._alone = True
            self._take_own_vote(now)
            self._become_coordinator(now)
        elif self._alone and campaign.majority_until > now:
            self._alone = False
        if self.state is ElectionState.FOLLOWER or now < campaign.send_at:
            return
        stage = PROBE
        if self.state is ElectionState.COORDINATOR:
            stage = ALONE if self._alone else LEAD
        elif campaign.is_asking:
            stage = VOTE
        if stage != PROBE:
            self._take_own_vote(now)
        campaign.send_later(now)
        self._broadcast(campaign.request(now, stage))

    def _stands_at(self) -> float:
        """Return the time when this host becomes a candidate, unless it sees a coordinator before
        then.
        """
        return max(self._sightings.lost_at(), self._voter.votes_from)

    def _may_go_alone(self, now: float) -> bool:
        is_time = now >= self._sightings.silent_since() + self._alone_after_s
        return is_time and self._voter.is_free_for(self.me, now)

    def _take_own_vote(self, now: float) -> None:
        self._voter.grant(self._campaign.request(now, VOTE), now)
        self._campaign.add_own(now)

    def _become_coordinator(self, now: float) -> None:
        self.state = ElectionState.COORDINATOR
        self._earlier.was_self = True
        self._campaign.win(now)
        self._sightings.forget_coordinator()
        self._effects.append(BecomeCoordinator())

    def _return_votes(self, now: float) -> None:
        """Return all votes and promises to their voters, including this host's own vote."""
        release = self._campaign.end(now)
        if release is not None:
            self._voter.revoke(self.me)
            self._broadcast(release)

    def _step_down(self, now: float) -> None:
        self.state = ElectionState.FOLLOWER
        self._alone = False
        self._return_votes(now)
        self._sightings.listening_since = now

    def _broadcast(self, message: Ballot) -> None:
        self._effects += [SendBallot(i, message) for i in range(len(self.hosts)) if i != self.me]


def _needed(hosts: Sequence[str]) -> str:
    count = len(hosts)
    if count == 2:
        return f"{hosts[0]}, the first of the endpoint's 2 hosts, is needed to elect a coordinator"
    if count % 2:
        return f"{count // 2 + 1} of the endpoint's {count} hosts are needed to elect a coordinator"
    return (
        f"{count // 2} of the endpoint's {count} hosts including {hosts[0]}, or {count // 2 + 1} "
        "without it, are needed to elect a coordinator"
    )
