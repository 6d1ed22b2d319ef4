"""The group: who is in, which generation is live, when to form the next one, and why not yet.

One coordinator runs this for all agents of a job: what they say comes in, what to do goes out.

    GATHERING   no workers run; nodes join
      | as many as may be, or enough and no newcomer for a while   -> RUNNING
      | the join timeout passes                                    -> ENDED
    RUNNING     a generation is live
      | a worker failed, a node was lost, newcomers are to be let in -> STOPPING
      | the workers of all nodes have ended well                   -> ENDED
    STOPPING    all nodes of the generation were told to stop their workers
      | all of them have, or are lost or overdue                   -> GATHERING, and on at once
      | a worker had failed and no restart is left                 -> ENDED
    RECOVERING  this coordinator is new; nodes announce a generation that is live
      | all of its nodes are here                                  -> RUNNING
      | all are, and a worker has failed; or some are not, in time -> STOPPING
    ENDED       everybody is told; so is who comes late

Rules:

- Only survivors are waited for on the way to the next generation, never strangers; where none is
  left, the leases of the lost ones.
- Survivors keep their order, a newcomer takes the hole of a lost node, the rest is appended. First
  is the natural order of host names. Nodes with a number are in its order; none is waited for.
- `restart` counts failures of workers; a change of membership costs nothing, and where both happen
  during a stop it was a change of membership.
- Whoever was lost and returns in time, workers and all, has its place again.
- A generation's number is above all that were heard of; generations of one number are told apart by
  who formed them. Nodes above the maximum are spares.
- A coordinator that hears of a generation which it does not know forms none of its own as long as
  workers of that one may run.
- A node that is not ready long after its workers must have ended is given up: its connection ends,
  and the others wait for its lease. While a stop takes long, all are told for whom it waits.
- The last call has an end. A host whose nodes come and go makes nobody wait or begin anew for it.

Invariants are in `check`. Deliberately not here: connections, heartbeats, leases, processes.
"""

from relight.core import ranks, waiting
from relight.core.exits import Failure
from relight.core.group import Drop, Effect, Event, Lost, Send, Settings, State, Told
from relight.core.messages import (
    Announce,
    Confirm,
    Done,
    End,
    Failed,
    Form,
    FromAgent,
    FromCoordinator,
    Join,
    Leave,
    Note,
    Ready,
    Stop,
    Wait,
)
from relight.core.ranks import NO_GENERATION, Generation, GenerationId, Node
from relight.errors import EXIT_GROUP, EXIT_OK, EXIT_USAGE, many

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.core.flapping import Flapping

_WAIT_EVERY_S = 1.0
"""A node is told at most this often why it waits: many that join must not flood each other."""
_TELL_AFTER_S = 0.3
"""What is over so soon need not be told."""
_MAX_NUMBER = 1 << 40
"""Nobody has formed so many generations: a node that says so must not spoil the numbers."""
_TELL_STOP_AFTER_S = 5.0
"""A stop that takes so long is told to all, with the names of those it waits for."""
_LAST_CALLS = 3
"""So many times the last call is how long nodes are waited for that come one after the other."""


class _Member:
    """A node that is connected."""

    def __init__(self, join: Join, number: int, arrived_at: float, probation_s: float) -> None:
        self.node = join.node
        self.join = join
        self.number = number  # of its arrival
        self.arrived_at = arrived_at
        self.probation_s = probation_s  # is let in when it has stayed for so long
        self.ready: Ready | None = None
        self.idle = True  # has come without workers, and was not told to start any


class _Stopping:
    """A stop of all workers: when people are told of it, and when those that are late are given
    up; None for never.
    """

    def __init__(self, now: float) -> None:
        self.tell_at: float | None = now + _TELL_STOP_AFTER_S
        self.give_up_at: float | None = None
        self.given_up: set[str] = set()

    def deadlines(self) -> list[float]:
        """Return when something is due."""
        return [at for at in (self.tell_at, self.give_up_at) if at is not None]

    def wait_for(self, stop_s: float | None, now: float) -> None:
        """Wait for a node as well."""
        if stop_s is not None:
            self.give_up_at = max(self.give_up_at or 0.0, now + stop_s)


class Membership:
    """The state machine of one job's group. A step costs the same however many nodes there are,
    but for those that change the group as a whole.

    Args:
        settings: what the job was asked to be.
        origin: a random word that no other group has, part of the ids of generations formed here.
    """

    def __init__(self, settings: Settings, origin: str) -> None:
        self.settings = settings
        self.state = State.GATHERING
        self.generation = NO_GENERATION
        self._origin = origin
        self.restart = 0
        self.end: End | None = None
        self.members: dict[str, _Member] = {}
        self.order: list[str | None] = []
        """The nodes of the live or last generation by group rank; None where one was lost."""
        self._places: dict[str, int] = {}  # the same by node
        self._active: set[str] = set()  # those of them whose workers may still run
        self._done: dict[str, float] = {}  # those whose workers have ended well, and when
        self._done_and_gone = 0
        self._ready: dict[str, None] = {}  # nodes without workers, by arrival of their word
        self._by_node_rank: dict[int, str] = {}
        self._differences = waiting.Differences()
        self._flapping: Flapping | None = None  # from the first node that has gone
        self._arrivals = 0
        self._waiting_since = 0.0
        self._enough_since: float | None = None  # since when the last call goes on
        self._unsure_until = 0.0  # workers of a generation that is not known here may run
        self._formed_at = 0.0
        self._latest = NO_GENERATION  # that was heard of
        self._stopping: _Stopping | None = None  # since the live or last generation was told to
        self._cause = "start"
        self._trouble = ""  # a worker has failed, and why
        self._changed = False  # a node was lost or let in during this stop
        self._failures: list[Failure] = []  # `at` on our clock
        self._left: list[int] = []
        self._recover_until: float | None = None  # lost nodes may still come back as they were
        self._untold = False  # those who wait do not know the latest reason
        self._tell_at = 0.0
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what must be said to whom, and who is given up."""
        match event:
            case Told(_, Join() as join):
                self._join(join, now)
            case Told(node, message) if node in self.members:
                self._told(self.members[node], message, now)
            case Lost(node, reason) if node in self.members:
                self._lose(self.members[node], f"was lost: {reason}", now)
        self._advance(now)
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float | None:
        """Return when the next Tick is due, or None."""
        settings, times = self.settings, []
        if self.state is State.GATHERING and self.members:
            times.append(self._waiting_since + settings.join_timeout_s)
            if self._enough():
                until = 0.0 if self._is_full() else self._last_call_until()
                times.append(max(until, self._begins_alone_at()))
        elif self.state is State.RUNNING:
            if self._has_room():
                times.append(self._let_in_at())
            if self._done:
                times.append(next(iter(self._done.values())) + settings.exit_barrier_s)
        elif self.state is State.STOPPING and self._active and self._stopping is not None:
            times += self._stopping.deadlines()
        if self._recover_until is not None:
            times.append(self._recover_until)
        if self._untold and self.state in (State.GATHERING, State.RUNNING):
            times.append(self._tell_at)
        return min(times, default=None)

    def present(self) -> int:
        """Return how many nodes are here, or have ended well and gone: nobody lacks those."""
        return len(self.members) + self._done_and_gone

    def lost(self) -> int:
        """Return how many nodes of the live or last generation are gone that had not ended well."""
        return self.order.count(None) - self._done_and_gone

    def explain(self, now: float) -> str:
        """Return in words what is being waited for."""
        settings, here = self.settings, len(self.members)
        left = self._waiting_since + settings.join_timeout_s - now
        match self.state:
            case State.GATHERING:
                hosts = [m.join.host for m in self.members.values()]
                if here < settings.needed:
                    return waiting.too_few(hosts, settings.needed, settings.most, left)
                if not self._enough():
                    late = [m.join.host for n, m in self.members.items() if n not in self._ready]
                    return waiting.not_ready(late, left)
                return waiting.last_call(hosts, settings.most, settings.last_call_s)
            case State.RUNNING:
                nodes = many(len(self.order), "node")
                return f"generation {self.generation.number} runs on {nodes}"
            case State.STOPPING if self._active:
                late = [self.members[node].join.host for node in sorted(self._active)]
                return f"waiting for workers to stop on {waiting.names(late)} ({self._cause})"
            case State.STOPPING | State.RECOVERING:
                return waiting.coming_back(self.order.count(None), self.generation.number)
            case State.ENDED:
                return "the job is over"

    def check(self) -> None:
        """Assert the invariants."""
        live = {node: place for place, node in enumerate(self.order) if node is not None}
        assert live == self._places
        assert live.keys() | self._ready.keys() <= self.members.keys()
        assert self._active | self._done.keys() <= live.keys()
        assert not self._ready.keys() & self._active
        assert self._stopping is None or not self._stopping.given_up & live.keys()
        assert len(self.order) <= self.settings.most
        assert self.restart <= self.settings.max_restarts
        assert self.generation.number <= self._latest.number
        assert (self.end is not None) == (self.state is State.ENDED)
        if self.state is State.RUNNING:
            assert len(self.order) >= self.settings.least
            assert len(live) + self._done_and_gone == len(self.order)
            assert self._active == live.keys() - self._done.keys()
        assert self._active or self._recover_until is not None or self.state is not State.STOPPING

    # What nodes say.

    def _join(self, join: Join, now: float) -> None:
        if self.end is not None:
            self._send(join.node, self.end)
            return
        holder = self.members.get(self._by_node_rank.get(join.node_rank, join.node))
        other = holder.join if holder is not None and holder.node != join.node else None
        refusal = waiting.refusal(self.settings, join, other)
        if refusal:
            self._send(join.node, End(EXIT_USAGE, refusal, (), None))
            return
        if not self.members and self.state is State.GATHERING:
            self._waiting_since = now
        member = self.members.get(join.node)
        if member is None:
            for text in self._differences.of(join):
                for node in (join.node, *list(self.members)[:1]):
                    self._send(node, Note(text))
            member = _Member(join, self._arrivals, now, self._probation_s(join))
            self.members[join.node] = member
            self._arrivals += 1
        if self.settings.ordered:
            self._by_node_rank[join.node_rank] = join.node
        member.join, member.ready, member.idle = join, None, join.announce is None
        self._ready.pop(join.node, None)
        if not self._untold:  # and if it is, more that join do not put it off
            self._untold, self._tell_at = True, max(self._tell_at, now + _TELL_AFTER_S)
        if join.announce is not None:
            self._announced(member, join.announce, now)
        elif join.node in self._places:  # it has lost its workers, or never got the word to start
            if self.state is State.RUNNING:
                self._stop(f"{join.host} came back without its workers", now)
            elif self.state is State.STOPPING:
                self._active.add(join.node)  # until it says that it is ready
                self._stop_too(join.node, now)

    def _announced(self, member: _Member, announce: Announce, now: float) -> None:
        """A node comes with the workers of a generation."""
        generation, node = announce.generation, member.node
        place, size = announce.group_rank, announce.group_world_size
        possible = 0 <= place < size <= self.settings.most and generation.number < _MAX_NUMBER
        self._has_heard_of(generation)
        nothing_known = self.state in (State.GATHERING, State.RECOVERING)
        if possible and generation.number > self.generation.number and nothing_known:
            for older in list(self._places):
                self._supersede(self.members[older], now)
            self.state, self.generation, self._formed_at = State.RECOVERING, generation, now
            self.restart = min(max(self.restart, announce.restart), self.settings.max_restarts)
            self.order, self._done_and_gone = [None] * size, 0
            self._changed, self._trouble, self._failures, self._left = False, "", [], []
            self._stopping = None
            self._recover_until = now + self.settings.rejoin_s
        live = self.state in (State.RUNNING, State.RECOVERING, State.STOPPING)
        known = possible and live and (generation, size) == (self.generation, len(self.order))
        known = known and not (self._stopping is not None and node in self._stopping.given_up)
        if known and self.order[place] is None and node not in self._places:
            if self.state is State.RUNNING:  # one that was done and then lost
                self._done_and_gone -= 1
            self.order[place] = node
            self._places[node] = place
        if not known or self.order[place] != node:
            self._supersede(member, now)
            return
        if node not in self._done:
            self._active.add(node)
        if self.state is State.STOPPING:
            self._stop_too(node, now)
            return
        if self.state is State.RUNNING:
            self._send(node, Confirm(generation))
        if announce.done:
            self._is_done(node, now)

    def _supersede(self, member: _Member, now: float) -> None:
        announce = member.join.announce
        its_own = self.generation if announce is None else announce.generation
        self._send(member.node, Stop(its_own, "the group went on without this node", gently=False))
        if member.node in self._places:
            self._set_aside(member.node)
            self._changed = True
            if self.state is State.RUNNING:
                self._stop(f"{member.join.host} is in another generation", now)

    def _has_heard_of(self, generation: GenerationId) -> None:
        latest = self._latest
        if latest.number < generation.number < _MAX_NUMBER:
            self._latest = generation
        elif latest.number == generation.number and latest.origin != generation.origin:
            self._latest = latest._replace(origin="")  # there were several

    def _told(self, member: _Member, message: FromAgent, now: float) -> None:
        node = member.node
        current = node in self._places and getattr(message, "generation", None) == self.generation
        match message:
            case Ready():
                self._has_heard_of(message.generation)
                self._has_heard_of(message.latest)
                if node in self._places and not (current or member.idle):
                    return  # an older word
                self._is_ready(member, message, current, now)
            case Failed(_, reason) if current:
                self._trouble = self._trouble or reason
                if self.state is State.RUNNING:
                    self._stop(reason, now)
            case Done() if current and self.state in (State.RUNNING, State.RECOVERING):
                self._is_done(node, now)
            case Leave(reason):
                self._lose(member, f"left: {reason}", now, orderly=True)

    def _is_ready(self, member: _Member, ready: Ready, current: bool, now: float) -> None:
        node = member.node
        if node in self._active or node in self._done:
            if current:
                self._failures += [f._replace(at=f.at + now) for f in ready.failures]
                self._left += ready.left
                if any(not failure.asked for failure in ready.failures):
                    self._trouble = self._trouble or f"a worker failed on {member.join.host}"
            if self.state is State.RUNNING:
                self._stop(self._trouble or f"workers ended on {member.join.host}", now)
            self._active.discard(node)
            self._done.pop(node, None)
        if self.generation == NO_GENERATION:  # the budget outlives a coordinator
            self.restart = max(self.restart, min(ready.restart, self.settings.max_restarts))
            if self._latest.number >= 0 and not self._unsure_until:
                self._unsure_until = now + self.settings.rejoin_s
        member.ready = ready
        self._ready[node] = None
        self._untold = True

    def _is_done(self, node: str, now: float) -> None:
        self._active.discard(node)
        self._done.setdefault(node, now)

    def _lose(self, member: _Member, what: str, now: float, *, orderly: bool = False) -> None:
        node = member.node
        self._forget(member)
        self._has_gone(member, now)
        self._untold = True
        if node not in self._places:
            return
        done = node in self._done
        self._set_aside(node)
        if done:
            self._done_and_gone += 1
        elif self.state is State.RECOVERING and not orderly:
            self._recover_until = now + self.settings.rejoin_s
        else:
            self._changed = True
            if self.state in (State.RUNNING, State.RECOVERING):
                self._stop(f"{member.join.host} {what}", now)
            elif self.state is State.STOPPING:
                self._cause = f"{member.join.host} {what}"
            if self.state is State.STOPPING and not self._places and not orderly:
                self._recover_until = now + self.settings.rejoin_s

    def _probation_s(self, join: Join) -> float:
        """Return how long a newcomer must stay before it is let in, and tell it."""
        if self._flapping is None:
            return 0.0
        seconds = self._flapping.probation_s(join.host, self.settings.last_call_s)
        if seconds:
            times = self._flapping.times(join.host)
            self._send(join.node, Note(waiting.on_probation(join.host, times, seconds)))
        return seconds

    def _has_gone(self, member: _Member, now: float) -> None:
        if self._flapping is None:
            from relight.core.flapping import Flapping

            self._flapping = Flapping()
        self._flapping.gone(member.join.host, now - member.arrived_at)

    def _forget(self, member: _Member) -> None:
        del self.members[member.node]
        self._by_node_rank.pop(member.join.node_rank, None)
        self._ready.pop(member.node, None)

    def _set_aside(self, node: str) -> None:
        """A node of the generation is no longer in it; its place becomes a hole."""
        self.order[self._places.pop(node)] = None
        self._active.discard(node)
        self._done.pop(node, None)

    # What follows.

    def _advance(self, now: float) -> None:
        """Go on as far as it is possible now."""
        if self._recover_until is not None:
            self._recover(self._recover_until, now)
        if self.state is State.RUNNING:
            self._run(now)
        if self.state is State.STOPPING and self._active and self._stopping is not None:
            self._hurry(self._stopping, now)
        if self.state is State.STOPPING and not self._active and self._recover_until is None:
            self._stopped(now)
        if self.state is State.GATHERING:
            self._gather(now)
        if self._untold and now >= self._tell_at:
            self._tell_why(now)

    def _recover(self, until: float, now: float) -> None:
        missing = len(self._places) + self._done_and_gone < len(self.order)
        if missing and now < until:
            return
        self._recover_until = None
        self._changed |= missing
        if self.state is not State.RECOVERING:
            return
        if missing:
            self._stop("a node was lost together with the coordinator", now)
        elif self._trouble or len(self._active) + len(self._done) < len(self._places):
            self._stop(self._trouble or "workers ended while there was no coordinator", now)
        else:
            self.state = State.RUNNING
            for node in self._places:
                self._send(node, Confirm(self.generation))

    def _run(self, now: float) -> None:
        if not self._active:
            self._finish(End(EXIT_OK, "all workers ended well", (), None))
            return
        for node, done_at in list(self._done.items()):
            if now < done_at + self.settings.exit_barrier_s:
                break
            self._set_aside(node)
            self._forget(self.members[node])
            self._done_and_gone += 1
            reason = "its workers ended well; others still run"
            self._send(node, End(EXIT_OK, reason, (), None, others_run=True))
        if newcomers := self._newcomers(now):
            self._changed = True
            hosts = [member.join.host for member in newcomers]
            self._stop(f"{waiting.names(hosts)} joined", now, gently=self.settings.gently)

    def _stop(self, cause: str, now: float, *, gently: bool = False) -> None:
        self.state, self._cause = State.STOPPING, cause
        self._recover_until = None
        # Who was done must begin anew with the others.
        self._active.update(self._done)
        self._done.clear()
        self._stopping = _Stopping(now)
        for node in self._places:
            if node in self._active:
                self._stopping.wait_for(self.members[node].join.stop_s, now)
                self._send(node, Stop(self.generation, cause, gently=gently))

    def _stop_too(self, node: str, now: float) -> None:
        """A node has come during a stop."""
        if self._stopping is not None and self._stopping.give_up_at is None:
            self._stopping.wait_for(self.members[node].join.stop_s, now)
        self._send(node, Stop(self.generation, self._cause, gently=False))

    def _hurry(self, stopping: _Stopping, now: float) -> None:
        """Tell all for whom a stop waits, and give up those that should long be ready."""
        if stopping.tell_at is not None and now >= stopping.tell_at:
            waited_for = len(self.members) > len(self._active)  # by anybody
            stopping.tell_at = None if waited_for else now + _TELL_STOP_AFTER_S
            if waited_for:
                self._tell_all(self.explain(now))
        if stopping.give_up_at is None or now < stopping.give_up_at:
            return
        stopping.give_up_at = None
        here = [self.members[node] for node in sorted(self._active)]
        late = [member for member in here if member.join.stop_s is not None]
        for member in late:
            stopping.given_up.add(member.node)
            self._effects.append(Drop(member.node))
            self._set_aside(member.node)
            self._forget(member)
            self._has_gone(member, now)
        if late:
            self._changed = True
            self._recover_until = now + self.settings.rejoin_s  # when their leases have ended
            hosts = [member.join.host for member in late]
            self._cause = f"{waiting.names(hosts)} {'was' if len(hosts) == 1 else 'were'} given up"
            self._tell_all(waiting.given_up(hosts))

    def _tell_all(self, text: str) -> None:
        for node in self.members:
            self._send(node, Note(text))

    def _stopped(self, now: float) -> None:
        """No workers run any more: restart after a failure, go on after a change, or end."""
        self.state, self._waiting_since = State.GATHERING, now
        if self._trouble and not self._changed:
            self._after_failure(now)

    def _after_failure(self, now: float) -> None:
        from relight.core import verdict  # a failure is rare, and this loads a large module

        story = verdict.Story(self._failures, self._left, self._cause, self._formed_at)
        outcome = verdict.judge(story, self.restart, self.settings.max_restarts, now)
        if isinstance(outcome, End):
            self._finish(outcome)
        else:
            self.restart, self._cause = self.restart + 1, outcome

    def _gather(self, now: float) -> None:
        if not self.members:
            return
        late = now >= self._waiting_since + self.settings.join_timeout_s
        if not self._enough():
            self._enough_since = None
        elif self.generation != NO_GENERATION:
            self._form(now)
            return
        else:
            if self._enough_since is None:
                self._enough_since = now
            over = self._is_full() or now >= self._last_call_until()
            if (over and now >= self._begins_alone_at()) or late:
                self._form(now)
                return
        if late:
            after = waiting.duration(self.settings.join_timeout_s)
            reason = self.explain(now).partition(" (join timeout")[0]
            self._finish(End(EXIT_GROUP, f"gave up after {after}: {reason}", (), None))

    def _enough(self) -> bool:
        return len(self._ready) >= self.settings.needed

    def _begins_alone_at(self) -> float:
        """Return until when workers of a generation that is not known here may run: nodes have
        heard of it, and not all that can have been in it are here.
        """
        readies = (self.members[node].ready for node in self._ready)
        here = sum(ready is not None and ready.generation == self._latest for ready in readies)
        return self._unsure_until if here < self.settings.most else 0.0

    def _is_full(self) -> bool:
        """Whether nobody else is waited for before the first generation."""
        most = self.settings.most
        return len(self._ready) >= most and (
            self.settings.needed == most or len(self._regular()) >= most
        )

    def _last_call_until(self) -> float:
        """Return until when others are waited for, if no other comes."""
        last_call_s = self.settings.last_call_s
        regular = (m.arrived_at for m in reversed(self.members.values()) if not m.probation_s)
        since = self._enough_since
        if since is None:
            since = min((self.members[node].arrived_at for node in self._ready), default=0.0)
        return min(next(regular, since) + last_call_s, since + _LAST_CALLS * last_call_s)

    def _regular(self) -> list[_Member]:
        """Return the nodes that are ready, but for those of hosts that come and go."""
        return [m for node in self._ready if not (m := self.members[node]).probation_s]

    def _form(self, now: float) -> None:
        """Form the next generation of the nodes that are ready, or of as many as may be."""
        members = self._in_rank_order(now)
        first = members[0]
        assert first.ready is not None
        self._latest = self.generation = GenerationId(self._latest.number + 1, self._origin)
        self.state, self._formed_at = State.RUNNING, now
        self.order = [member.node for member in members]
        self._places = {member.node: place for place, member in enumerate(members)}
        self._active = set(self._places)
        self._done.clear()
        self._done_and_gone, self._changed, self._trouble = 0, False, ""
        self._failures, self._left, self._enough_since, self._stopping = [], [], None, None
        self._untold = len(self.members) > len(self.order)
        address, port = first.join.address, first.ready.port
        generation = Generation(self.generation, self.restart, address, port, self._cause)
        nodes = [Node(m.join.slots, m.join.role) for m in members]
        for member, place in zip(members, ranks.places(nodes), strict=True):
            member.ready, member.idle = None, False
            del self._ready[member.node]
            self._send(member.node, Form(generation, place))

    def _candidates(self, now: float) -> list[_Member]:
        """Return the nodes to form a generation of, in the order of their arrival. One of a host
        that comes and goes is taken when it has stayed for a while, or where it is needed.
        """
        ready = sorted((self.members[node] for node in self._ready), key=lambda m: m.number)
        settled = [m for m in ready if now >= m.arrived_at + m.probation_s]
        others = [m for m in ready if now < m.arrived_at + m.probation_s]
        return settled + others[: max(0, self.settings.needed - len(settled))]

    def _in_rank_order(self, now: float) -> list[_Member]:
        ready, most = self._candidates(now), self.settings.most
        if self.generation == NO_GENERATION:
            ready = sorted(ready[:most], key=lambda m: (ranks.natural(m.join.host), m.number))
        taken = {member.node for member in ready}
        survivors = [node if node in taken else None for node in self.order]
        newcomers = [m.node for m in ready if m.node not in self._places]
        order = ranks.arrange(survivors, newcomers, most)
        numbers = {m.node: m.join.node_rank for m in ready if m.join.node_rank >= 0}
        return [self.members[node] for node in ranks.as_numbered(order, numbers)]

    def _finish(self, end: End) -> None:
        self.state, self.end = State.ENDED, end
        for node in self.members:
            self._send(node, end)

    def _tell_why(self, now: float) -> None:
        """Tell those who wait what for."""
        if self.state is State.GATHERING:
            told, spare, text = list(self.members.values()), False, self.explain(now)
        elif self.state is State.RUNNING:
            ending = bool(self._done or self._done_and_gone)
            told, spare = self._outside(), ending or len(self.order) >= self.settings.most
            what = "kept as a spare" if spare else "let in soon"
            text = f"{self.explain(now)}; this node is {what}"
        else:
            return
        self._untold = False
        for member in told:
            self._send(member.node, Wait(text, spare, self.generation))
            self._tell_at = now + _WAIT_EVERY_S

    def _outside(self) -> list[_Member]:
        """Return the nodes that are not in the live generation."""
        return [m for node, m in self.members.items() if node not in self._places]

    def _has_room(self) -> bool:
        """Whether nodes that wait may be let in. A job that is about to end lets in none."""
        ending = self._done or self._done_and_gone
        return bool(self._ready) and not ending and len(self.order) < self.settings.most

    def _let_in_at(self) -> float:
        """Return when nodes that wait are let in: together, if they are ready for it within one
        last call.
        """
        waiting_ones = (self.members[node] for node in self._ready)
        times = sorted(m.arrived_at + m.probation_s for m in waiting_ones)
        together = [at for at in times if at <= times[0] + self.settings.last_call_s]
        return max(together[-1], self._last_call_until())

    def _newcomers(self, now: float) -> list[_Member]:
        """Return the nodes to let in now."""
        if not self._has_room():
            return []
        regular, room = self._regular(), self.settings.most - len(self.order)
        if len(regular) < room and now < self._let_in_at():
            return []
        ready = [self.members[node] for node in self._ready]
        return [m for m in ready if now >= m.arrived_at + m.probation_s][:room]

    def _send(self, node: str, message: FromCoordinator) -> None:
        self._effects.append(Send(node, message))
