"""Elects the coordinator among the hosts of an endpoint that lists several, by leases.

Each host of the list has at most one elector: the agent that holds the endpoint's port there. The
coordinator is the elector that holds unexpired votes of a majority of the hosts, and only while it
does. If the number of hosts is even, half of them are a majority if they include the first host.

    FOLLOWER     a coordinator was seen, or this elector has just started
      | none was seen for `vote_s`                              -> CANDIDATE
    CANDIDATE    asks the others whether they would vote for it (a probe binds nobody), waits a
                 moment for each lower-numbered host that is also a candidate, then asks for votes
      | it holds the votes of a majority                        -> COORDINATOR, BecomeCoordinator
      | it hears a coordinator, or of one in an answer          -> FOLLOWER, votes are given back
      | a lower candidate asks for votes or holds one, or half of `vote_s` brought no majority:
        it gives its votes back and probes again
    COORDINATOR  renews its votes four times in `vote_s`; no other host displaces it
      | its votes expired                                       -> FOLLOWER

A host votes for one candidate at a time, for `vote_s` after it received the request. The candidate
counts the vote from the time at which it sent that request, and a tenth less; so no common clock is
needed, only clocks that run equally fast. A restarted elector does not know its earlier votes, so
it votes for nobody for `vote_s`. One-way links do no harm: a candidate asks for votes only after a
majority has answered its probes.

With `alone`, a host that has seen no coordinator for three times `vote_s` needs only its own vote.
The user asks for that explicitly: two halves of a partitioned network may then both have a
coordinator. When they meet again, the one without a majority resigns, or else the higher-numbered
one.

Invariants (`check`): a coordinator's lease is valid; a host that asks for votes or coordinates has
its own vote; a follower holds no votes. Over all hosts, without `alone`: two leases are never valid
at once. A process that was suspended learns of its lost lease in its next step: call `holds` before
acting as the coordinator.
"""

from collections.abc import Collection, Sequence
from enum import Enum

from relight.events import Tick
from relight.typed import NamedTuple

MARGIN = 0.9
"""The part of a vote's time that its candidate counts on."""
STAGGER = 0.3
"""In `vote_s`: how long a candidate waits for each lower-numbered candidate."""
ROUND = 0.7
"""In `vote_s`: how long a candidate asks for votes before it gives them back."""
ALONE_AFTER = 3
"""In `vote_s`: how long no coordinator was seen before one host may go on alone."""


class ElectionState(Enum):
    """The state of this host in the election."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    COORDINATOR = "coordinator"


PROBE, VOTE, LEAD, ALONE = "probe", "vote", "lead", "alone"
"""Kinds of requests. A candidate asks `would you vote for me` (PROBE) and `vote for me` (VOTE); a
coordinator renews votes, elected by a majority (LEAD) or by its own vote only (ALONE). All but a
probe bind the voter.
"""


class VoteRequest(NamedTuple):
    """A candidate or the coordinator asks for a vote. `sent` is in its own clock.

    `incarnation` is random and belongs to one process alone.
    """

    candidate: int
    incarnation: str
    sent: float
    stage: str


class VoteReply(NamedTuple):
    """The answer; `candidate`, `incarnation`, `sent` and `stage` are copied from the request.

    If `leads`, `holder` is a coordinator that the voter itself heard `age_s` seconds ago. Otherwise
    it is the candidate that has its vote, -1 for none.
    """

    voter: int
    candidate: int
    incarnation: str
    sent: float
    stage: str
    granted: bool
    holder: int
    leads: bool
    age_s: float


class VoteRelease(NamedTuple):
    """A candidate gives back all votes for requests sent up to `sent`."""

    candidate: int
    incarnation: str
    sent: float


Message = VoteRequest | VoteReply | VoteRelease


class BallotReceived(NamedTuple):
    """Event: a message came from another host of the list."""

    message: Message


Event = BallotReceived | Tick


class SendBallot(NamedTuple):
    """Effect: send a message to a host of the list; it may get lost."""

    host: int
    message: Message


class BecomeCoordinator(NamedTuple):
    """Effect: this host coordinates from now on, while `holds`."""


Effect = SendBallot | BecomeCoordinator


class _Vote(NamedTuple):
    """This host's vote, in its own clock but for `sent`."""

    candidate: int
    incarnation: str
    sent: float
    until: float


class Election:
    """The elector of one host.

    Args:
        hosts: the hosts of the endpoint, the same list in the same order everywhere.
        me: the index of this one.
        incarnation: random text of this process.
        now: the time in this host's clock.
        vote_s: how long a vote counts; equal everywhere.
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
        self._incarnation = incarnation
        self._vote_s = vote_s
        self._may_stand_alone = alone
        # With one host, no other candidate can have had its vote.
        self._votes_from = now + vote_s if len(self.hosts) > 1 else now
        self._vote: _Vote | None = None
        self._latest: dict[int, tuple[str, float]] = {}
        """The last request of each candidate: its incarnation and when it was sent."""
        self._votes: dict[int, float] = {}
        """Votes for this host, and until when they count."""
        self._promises: dict[int, float] = {}
        """Who would vote for this host, and when it was asked."""
        self._void_until = float("-inf")
        """Answers to requests sent up to then are ignored: their votes were given back."""
        self._heard_at: dict[int, float] = {}
        self._direct = (-1, float("-inf"))
        """The coordinator that this host itself heard, and when."""
        self._coordinator = -1
        self._seen_at = self._votes_from - vote_s
        """When `_coordinator` was last alive, as far as this host knows."""
        self._listening_since = now
        self._last_step = now
        self._ready_since: float | None = None
        self._asking_since: float | None = None
        self._send_at = now
        self._alone = False
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return the effects.

        Events that change nothing: messages of another list or to an earlier incarnation, requests
        that were overtaken, answers to votes given back, a Tick too early.
        """
        self._effects = []
        if now - self._last_step > 1.5 * self._vote_s:  # this process was suspended: listen first
            self._listening_since = now
        self._last_step = now
        if self.state is ElectionState.COORDINATOR and self.lease_until() <= now:
            self._resign(now)
        match event:
            case BallotReceived(VoteRequest() as request) if self._is_other(request.candidate):
                self._on_request(request, now)
            case BallotReceived(VoteReply() as reply) if self._is_other(reply.voter):
                if (reply.candidate, reply.incarnation) == (self.me, self._incarnation):
                    self._on_reply(reply, now)
            case BallotReceived(VoteRelease() as release) if self._is_other(release.candidate):
                self._on_release(release, now)
        self._advance(now)
        return self._effects

    def deadline(self) -> float:
        """Return when the next Tick is due."""
        if self.state is ElectionState.COORDINATOR:
            return min(self._send_at, self.lease_until())
        if self.state is ElectionState.CANDIDATE:
            return self._send_at
        return max(self._seen_at + self._vote_s, self._votes_from)

    def holds(self, now: float) -> bool:
        """Return whether this host is the coordinator at this moment."""
        return self.state is ElectionState.COORDINATOR and now < self.lease_until()

    def lease_until(self) -> float:
        """Return until when this host holds enough votes; minus infinity if it does not."""
        if self._alone:
            return self._votes[self.me]
        voters: set[int] = set()
        for until, voter in sorted(((u, v) for v, u in self._votes.items()), reverse=True):
            voters.add(voter)
            if is_majority(voters, len(self.hosts)):
                return until
        return float("-inf")

    def coordinator(self, now: float) -> int:
        """Return the index of the coordinator, -1 if this host knows none."""
        if self.holds(now):
            return self.me
        return self._coordinator if now - self._seen_at < self._vote_s else -1

    def explain(self, now: float) -> str:
        """Return in words what this host is waiting for."""
        known = self.coordinator(now)
        if known == self.me:
            by = " by its own vote alone" if self._alone else ""
            return f"this host, {self.hosts[self.me]}, is the coordinator{by}"
        if known >= 0:
            return f"{self.hosts[known]} is the coordinator"
        silent = [
            host
            for i, host in enumerate(self.hosts)
            if i != self.me and now - self._heard_at.get(i, float("-inf")) >= self._vote_s
        ]
        needed = _needed(self.hosts)
        if silent:
            return f"{needed}; no answer from {', '.join(silent)}"
        if now < self._votes_from:
            left = self._votes_from - now
            return f"{needed}; this host has just started and votes in {left:.1f} s"
        return f"{needed}; all of them answer, and choose now"

    def check(self) -> None:
        """Assert the invariants."""
        own = self._vote is not None and self._vote.candidate == self.me
        asking = self._asking_since is not None
        assert not asking or self.state is ElectionState.CANDIDATE
        assert own == (asking or self.state is ElectionState.COORDINATOR)
        assert bool(self._votes) == own
        assert not self._alone or (
            self._may_stand_alone and self.state is ElectionState.COORDINATOR
        )
        if self.state is ElectionState.COORDINATOR:
            assert self._last_step < self.lease_until()
        if self._votes:
            assert self._vote is not None
            assert self._votes[self.me] < self._vote.until
            assert max(self._votes.values()) <= self._last_step + MARGIN * self._vote_s
        assert self.deadline() > self._last_step

    def _is_other(self, index: int) -> bool:
        return 0 <= index < len(self.hosts) and index != self.me

    def _is_free_for(self, candidate: int, now: float) -> bool:
        """Return whether this host's vote can go to a candidate."""
        if now < self._votes_from:
            return False
        return self._vote is None or self._vote.candidate == candidate or self._vote.until <= now

    def _on_request(self, request: VoteRequest, now: float) -> None:
        candidate, incarnation, sent, stage = request
        last = self._latest.get(candidate)
        if last is not None and last[0] == incarnation and sent <= last[1]:
            return
        self._latest[candidate] = (incarnation, sent)
        self._heard_at[candidate] = now
        if stage in (LEAD, ALONE):
            if self._alone and (stage == LEAD or candidate < self.me):
                self._resign(now)
            if self.state is not ElectionState.COORDINATOR:
                self._direct = (candidate, now)
                self._see(candidate, now, now)
        elif stage == VOTE and self._asking_since is not None and candidate < self.me:
            self._give_back(now)
        leader, heard_at = self._direct
        leader_lives = now - heard_at < self._vote_s
        granted = self._is_free_for(candidate, now) and not (leader_lives and leader != candidate)
        if granted and stage != PROBE:
            self._vote = _Vote(candidate, incarnation, sent, now + self._vote_s)
        holder, leads, age_s = -1, False, 0.0
        if self.state is ElectionState.COORDINATOR:
            holder, leads = self.me, True
        elif leader_lives:
            holder, leads, age_s = leader, True, now - heard_at
        elif self._vote is not None and now < self._vote.until:
            holder = self._vote.candidate
        reply = VoteReply(
            self.me, candidate, incarnation, sent, stage, granted, holder, leads, age_s
        )
        self._effects.append(SendBallot(candidate, reply))

    def _on_reply(self, reply: VoteReply, now: float) -> None:
        voter, holder = reply.voter, reply.holder
        self._heard_at[voter] = now
        if not self._void_until < reply.sent <= now:
            return
        if reply.stage == PROBE:
            if reply.granted:
                self._promises[voter] = max(reply.sent, self._promises.get(voter, reply.sent))
            else:
                self._promises.pop(voter, None)
        elif reply.granted and self._votes:
            until = reply.sent + MARGIN * self._vote_s
            self._votes[voter] = max(until, self._votes.get(voter, until))
            if (
                self.state is ElectionState.COORDINATOR
                and self.lease_until() == self._votes[self.me]
            ):
                self._send_at = self._votes[self.me] + (0.25 - MARGIN) * self._vote_s
        if reply.granted or self.state is ElectionState.COORDINATOR or not self._is_other(holder):
            return
        if reply.leads:
            self._see(holder, now - max(0.0, reply.age_s), now)
        elif self._asking_since is not None and holder < self.me:
            self._give_back(now)

    def _on_release(self, release: VoteRelease, now: float) -> None:
        candidate, incarnation, sent = release
        vote = self._vote
        if vote is not None and vote[:2] == (candidate, incarnation) and vote.sent <= sent:
            self._vote = None
        last = self._latest.get(candidate)
        if last is not None and last[0] == incarnation and last[1] <= sent:
            self._heard_at[candidate] = now
            if self._direct[0] == candidate:
                self._direct = (-1, float("-inf"))
            if self._coordinator == candidate:
                self._coordinator = -1
                self._seen_at = min(self._seen_at, now - self._vote_s)

    def _see(self, coordinator: int, at: float, now: float) -> None:
        """Note a live coordinator, and stop being a candidate."""
        if at < self._seen_at:
            return
        self._coordinator, self._seen_at = coordinator, at
        if self.state is ElectionState.CANDIDATE and now - at < self._vote_s:
            self._give_back(now)
            self.state = ElectionState.FOLLOWER

    def _advance(self, now: float) -> None:
        """Do everything that is due."""
        due = max(self._seen_at + self._vote_s, self._votes_from)
        if self.state is ElectionState.FOLLOWER and now >= due:
            self.state = ElectionState.CANDIDATE
            self._send_at = now
        if self.state is ElectionState.CANDIDATE:
            if self._asking_since is None:
                self._stand(now)
            if self._asking_since is not None:
                if self.lease_until() > now:
                    self._become_coordinator()
                elif now >= self._asking_since + ROUND * self._vote_s:
                    self._give_back(now)
        if self.state is ElectionState.CANDIDATE and self._may_go_alone(now):
            self._alone = True
            self._take_own_vote(now)
            self._become_coordinator()
        elif self._alone and is_majority(
            [v for v, until in self._votes.items() if until > now], len(self.hosts)
        ):
            self._alone = False
        if self.state is ElectionState.FOLLOWER or now < self._send_at:
            return
        stage = PROBE
        if self.state is ElectionState.COORDINATOR:
            stage = ALONE if self._alone else LEAD
        elif self._asking_since is not None:
            stage = VOTE
        if stage != PROBE:
            self._take_own_vote(now)
        self._send_at = now + self._vote_s / 10  # repeated until answered: packets get lost
        self._tell_all(VoteRequest(self.me, self._incarnation, now, stage))

    def _stand(self, now: float) -> None:
        """Ask for votes if a majority has promised them and lower hosts had their chance."""
        fresh = {v for v, at in self._promises.items() if now - at < ROUND * self._vote_s}
        voters = {*fresh, self.me}
        if not (self._is_free_for(self.me, now) and is_majority(voters, len(self.hosts))):
            self._ready_since = None
            return
        if self._ready_since is None:
            self._ready_since = now
        lower = sum(1 for voter in fresh if voter < self.me)
        if now >= self._ready_since + lower * STAGGER * self._vote_s:
            self._asking_since = now
            self._ready_since = None
            self._promises.clear()
            self._take_own_vote(now)
            self._send_at = now

    def _may_go_alone(self, now: float) -> bool:
        silent_since = max(self._seen_at, self._listening_since)
        patience = (ALONE_AFTER + self.me * STAGGER) * self._vote_s
        return (
            self._may_stand_alone
            and now >= silent_since + patience
            and self._is_free_for(self.me, now)
        )

    def _take_own_vote(self, now: float) -> None:
        self._vote = _Vote(self.me, self._incarnation, now, now + self._vote_s)
        self._votes[self.me] = now + MARGIN * self._vote_s

    def _become_coordinator(self) -> None:
        self.state = ElectionState.COORDINATOR
        self._asking_since = None
        self._send_at = self._last_step
        self._coordinator = -1
        self._direct = (-1, float("-inf"))
        self._effects.append(BecomeCoordinator())

    def _give_back(self, now: float) -> None:
        """Give up the votes for this candidate, its own included, and the promises of votes."""
        self._promises.clear()
        self._ready_since = None
        if self._votes:
            self._votes.clear()
            self._vote = None
            self._asking_since = None
            self._void_until = now
            self._tell_all(VoteRelease(self.me, self._incarnation, now))
        self._send_at = now + self._vote_s / 10

    def _resign(self, now: float) -> None:
        self.state = ElectionState.FOLLOWER
        self._alone = False
        self._give_back(now)
        self._seen_at = now - self._vote_s
        self._listening_since = now

    def _tell_all(self, message: Message) -> None:
        self._effects += [SendBallot(i, message) for i in range(len(self.hosts)) if i != self.me]


def is_majority(voters: Collection[int], hosts: int) -> bool:
    """Return whether votes of these hosts are a majority: two majorities always share a host."""
    twice = 2 * len(voters)
    return twice > hosts or (twice == hosts and 0 in voters)


def _needed(hosts: Sequence[str]) -> str:
    count = len(hosts)
    if count == 2:
        return f"{hosts[0]}, the first of the 2 hosts of the endpoint, is needed to choose one"
    if count % 2:
        return (
            f"{count // 2 + 1} of {count} hosts of the endpoint are needed to choose a coordinator"
        )
    return (
        f"{count // 2} of {count} hosts of the endpoint with {hosts[0]}, or {count // 2 + 1}"
        " without it, are needed to choose a coordinator"
    )
