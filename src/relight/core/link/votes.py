"""Votes with a time limit. Each host casts one vote, and may receive several.

A host votes for one candidate at a time. The vote is binding for `vote_s` after the host receives
the request. The candidate relies on the vote for a tenth less than that, counted from the moment
when it *sent* the request. Therefore the vote always expires for the candidate before it expires
for the voter. The hosts' clocks don't need to be synchronized, but they must run at about the same
speed. A restarted host does not know about its earlier votes, so it does not vote during its first
`vote_s`. As a result, no two hosts ever hold unexpired votes from a majority at the same time.
"""

from collections.abc import Collection
from typing import NamedTuple

MARGIN = 0.9
"""The fraction of a vote's lifetime for which its candidate relies on the vote."""
STAGGER = 0.3
"""How long a candidate waits for each lower-numbered candidate, as a fraction of `vote_s`."""
ROUND = 0.7
"""How long a candidate asks for votes before it gives them back, as a fraction of `vote_s`."""

PROBE, VOTE, LEAD, ALONE = "probe", "vote", "lead", "alone"
"""Kinds of requests. A candidate asks whether a host would vote for it (PROBE), and then asks for
the vote (VOTE). A coordinator that was elected by a majority (LEAD) or by only its own vote (ALONE)
renews its votes. All requests except probes are binding for the voter.
"""


class VoteRequest(NamedTuple):
    """A candidate or the coordinator requests a vote. The `sent` field is the time on the sender's
    own clock.

    The `incarnation` field is random and unique to one process.
    """

    candidate: int
    incarnation: str
    sent: float
    stage: str


class VoteReply(NamedTuple):
    """The reply to a request. The fields `candidate`, `incarnation`, `sent` and `stage` are copied
    from the request.

    If the `leads` field is set, the `holder` field is a coordinator from which the voter received a
    message directly, `age_s` seconds ago. Otherwise, the `holder` field is the candidate that has
    the voter's vote, or -1. The `knows_another` field is set if the voter has received a message
    from a coordinating process that is not the candidate.
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
    knows_another: bool = False


class VoteRelease(NamedTuple):
    """A candidate returns all votes for requests that it sent at or before `sent`."""

    candidate: int
    incarnation: str
    sent: float


Ballot = VoteRequest | VoteReply | VoteRelease


class Voter:
    """The vote that this host casts. To become the coordinator, a host also needs its own vote.

    Args:
        votes_from: the earliest time at which this host may vote.
        vote_s: how long a vote counts.
    """

    def __init__(self, votes_from: float, vote_s: float) -> None:
        self.votes_from = votes_from
        self._vote_s = vote_s
        self._given: VoteRequest | None = None
        """The request that this host has voted for."""
        self._until = float("-inf")
        """When the vote expires, on this host's clock."""
        self._latest: dict[int, tuple[str, float]] = {}
        """The incarnation and send time of each candidate's last request."""

    def is_news(self, request: VoteRequest) -> bool:
        """Record a request. Return False if the request is outdated or repeated."""
        candidate, incarnation, sent, _ = request
        last = self._latest.get(candidate)
        if last is not None and last[0] == incarnation and sent <= last[1]:
            return False
        self._latest[candidate] = (incarnation, sent)
        return True

    def is_free_for(self, candidate: int, now: float) -> bool:
        """Return whether this host may give its vote to a candidate."""
        return now >= self.votes_from and self.candidate(now) in (-1, candidate)

    def is_for(self, candidate: int) -> bool:
        """Return whether a candidate has this host's vote, or was the last candidate to have it."""
        return self._given is not None and self._given.candidate == candidate

    def candidate(self, now: float) -> int:
        """Return the candidate that has this host's vote, or -1."""
        return self._given.candidate if self._given is not None and now < self._until else -1

    def grant(self, request: VoteRequest, now: float) -> None:
        """Vote for a candidate."""
        self._given, self._until = request, now + self._vote_s

    def revoke(self, candidate: int) -> None:
        """Take the vote back if the given candidate has it."""
        if self.is_for(candidate):
            self._given = None

    def release(self, release: VoteRelease) -> bool:
        """Take back a vote that the candidate released. Return True unless the candidate has sent a
        newer request.
        """
        candidate, incarnation, sent = release
        given = self._given
        if given is not None and given[:2] == (candidate, incarnation) and given.sent <= sent:
            self._given = None
        last = self._latest.get(candidate)
        return last is not None and last[0] == incarnation and last[1] <= sent


class Campaign:
    """The votes that this host has been promised, the votes that it has received, how long it has
    been requesting votes, and when it sends the next request.

    Args:
        me: the index of this host.
        incarnation: a random string that identifies this process.
        hosts: the number of voting hosts.
        vote_s: how long a vote counts.
    """

    def __init__(self, me: int, incarnation: str, hosts: int, vote_s: float) -> None:
        self.send_at = 0.0
        """When the next request is due. Requests are repeated until they are replied to, because
        packets get lost.
        """
        self._me = me
        self._incarnation = incarnation
        self._hosts = hosts
        self._vote_s = vote_s
        self._promised_at: dict[int, float] = {}
        """The hosts that would vote for this host, and the time when each of them was sent the
        request.
        """
        self._ready_since: float | None = None
        """The time since which this host has had promises from a majority."""
        self._asking_since: float | None = None
        self._until: dict[int, float] = {}
        """The hosts that vote for this host, and the time until which each vote counts."""
        self._void_until = float("-inf")
        """Replies to requests that were sent up to this time are ignored, because the votes in them
        have been given back.
        """

    @property
    def is_asking(self) -> bool:
        """Whether this host is requesting votes and has not been elected yet."""
        return self._asking_since is not None

    @property
    def has_votes(self) -> bool:
        """Whether this host has any votes, either its own or from other hosts."""
        return bool(self._until)

    @property
    def own_vote_until(self) -> float:
        """The time until which this host's own vote counts."""
        return self._until[self._me]

    @property
    def majority_until(self) -> float:
        """The time when the votes from a majority expire, or minus infinity if there is no
        majority.
        """
        voters: set[int] = set()
        for until, voter in sorted(((u, v) for v, u in self._until.items()), reverse=True):
            voters.add(voter)
            if is_majority(voters, self._hosts):
                return until
        return float("-inf")

    def is_ready(self, now: float, *, own_vote_is_free: bool) -> bool:
        """Return whether it is time to request votes. This host must have promises from a majority,
        and each lower-numbered host must have had time to go first.
        """
        fresh = {v for v, at in self._promised_at.items() if now - at < ROUND * self._vote_s}
        if not (own_vote_is_free and is_majority({*fresh, self._me}, self._hosts)):
            self._ready_since = None
            return False
        if self._ready_since is None:
            self._ready_since = now
        lower = sum(1 for voter in fresh if voter < self._me)
        return now >= self._ready_since + lower * STAGGER * self._vote_s

    def request(self, now: float, stage: str) -> VoteRequest:
        """Return a request that is sent now."""
        return VoteRequest(self._me, self._incarnation, now, stage)

    def has_requested(self, reply: VoteReply) -> bool:
        """Return whether this process, not an earlier one, sent the request for a reply."""
        return (reply.candidate, reply.incarnation) == (self._me, self._incarnation)

    def ask(self, now: float) -> None:
        """Start asking for votes."""
        self._asking_since = self.send_at = now
        self._ready_since = None
        self._promised_at.clear()

    def has_failed(self, now: float) -> bool:
        """Return whether this host has been requesting votes for long enough to give up."""
        since = self._asking_since
        return since is not None and now >= since + ROUND * self._vote_s

    def add_own(self, now: float) -> None:
        """Count this host's own vote, cast now."""
        self._until[self._me] = now + MARGIN * self._vote_s

    def add(self, reply: VoteReply, now: float) -> bool:
        """Count another host's reply. Return False if the reply arrived too late to be counted."""
        voter, sent = reply.voter, reply.sent
        if not self._void_until < sent <= now:
            return False
        if reply.stage == PROBE:
            if reply.granted:
                self._promised_at[voter] = max(sent, self._promised_at.get(voter, sent))
            else:
                self._promised_at.pop(voter, None)
        elif reply.granted and self._until:
            until = sent + MARGIN * self._vote_s
            self._until[voter] = max(until, self._until.get(voter, until))
        return True

    def send_later(self, now: float) -> None:
        """Schedule the next request, unless a reply arrives before then."""
        self.send_at = now + self._vote_s / 10

    def renew_later(self) -> None:
        """Schedule the next request, because a majority has renewed its votes."""
        self.send_at = self.own_vote_until + (0.25 - MARGIN) * self._vote_s

    def win(self, now: float) -> None:
        """Record that this host has been elected."""
        self._asking_since, self.send_at = None, now

    def end(self, now: float) -> VoteRelease | None:
        """Give up all votes and promises. Return the message that releases the votes, or None if
        there were none.
        """
        self.send_later(now)
        self._promised_at.clear()
        self._ready_since = None
        if not self._until:
            return None
        self._until.clear()
        self._asking_since = None
        self._void_until = now
        return VoteRelease(self._me, self._incarnation, now)

    def check(self, now: float) -> None:
        """Assert the invariants."""
        assert self._until or not self.is_asking
        assert (self._me in self._until) == bool(self._until)
        assert max(self._until.values(), default=now) <= now + MARGIN * self._vote_s


def is_majority(voters: Collection[int], hosts: int) -> bool:
    """Return whether these hosts' votes are a majority. Any two majorities share a host."""
    twice = 2 * len(voters)
    return twice > hosts or (twice == hosts and 0 in voters)
