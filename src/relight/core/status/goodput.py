"""Computes how a job spends its time. The wall time of each generation is split into phases, based
on one agent's events.

    rendezvous  from the end of the last generation's workers, or the start of the job, until the
                generation is formed
    spawn       until all workers on the node have been started
    imports     until the job's first worker connects to the store (init_process_group)
    init        until all of the job's workers have connected
    first_step  until a worker first calls relight.worker.progress
    productive  until a failure, the order to stop, or the end of the last worker
    lost        the productive time after the last checkpoint (--checkpoints), if the generation
                ended before its workers were done
    detect      from a failure until it is noticed
    teardown    until all workers have exited

A phase whose end is unknown is None, and its time counts as `unknown`. The ends of imports and init
are unknown if the script does not call init_process_group, or if the store is on another node. The
ends of first_step and productive are unknown if the script does not call progress(). The `lost`
phase requires --checkpoints. The `detect` phase is known only for failures on this node.
"""

from typing import Any, NamedTuple

from relight.base.text import format_duration, pluralize
from relight.core.status.phases import PHASES
from relight.events.event_types import (
    CheckpointFound,
    Ended,
    Event,
    FailureNoticed,
    Formed,
    GroupStopped,
    NotRestarting,
    RanksReplaced,
    SignalReceived,
    SpawnerLost,
    StepsReported,
    StoreReached,
    WorkerExited,
    WorkerStarted,
)

_SHORT_S = 60.0
"""If a job is shorter than this and has not reported steps, its time account is not worth
showing.
"""
_MAX_SHOWN = 20
"""Maximum number of generations, and maximum number of nodes, in an account."""
_MAX_HOSTS = 1000


class Phases(NamedTuple):
    """The length of each phase in seconds, or None if the length isn't known. In that case, the
    phase's time is counted under `unknown`, or under `productive` for the phases `lost` and
    `detect`.
    """

    rendezvous: float | None = None
    spawn: float | None = None
    imports: float | None = None
    init: float | None = None
    first_step: float | None = None
    productive: float | None = None
    lost: float | None = None
    detect: float | None = None
    teardown: float | None = None
    unknown: float = 0.0


class GenerationPhases(NamedTuple):
    """The phases of one generation."""

    generation: int
    phases: Phases


class NodeFailures(NamedTuple):
    """The number of failures that a node caused, and the workers' running time per failure."""

    host: str
    failures: int
    mtbf_s: float


class Account(NamedTuple):
    """How the job has spent its time so far, according to one agent.

    Times are in seconds. The `goodput` field is the productive fraction of the wall time, or None
    if no worker called progress(). The `is_most` field marks `goodput` as an upper bound, because
    the time lost to failures is unknown. The `mttr_s` field is the mean time between a failure and
    the end of the phase `repaired_by` in the next generation (first_step, init or spawn, depending
    on the available events). The `mtbf_s` field is the workers' running time per failure. The
    `nodes` field contains the nodes with the most failures, at most 20. The `latest` field contains
    the last 20 generations.
    """

    wall_s: float
    total: Phases
    goodput: float | None
    is_most: bool
    generations: int
    failures: int
    mttr_s: float | None
    repaired_by: str
    mtbf_s: float | None
    nodes: tuple[NodeFailures, ...]
    latest: tuple[GenerationPhases, ...]


class _Generation:
    """The times of one generation, each None until it is known.

    Args:
        formed: the event that reports the generation's formation.
        at: the time of that event.
        since: when the previous workers ended, or when the job began.
        failed_before: when the previous generation failed, or None if it did not fail.
    """

    def __init__(
        self, formed: Formed, at: float, since: float, failed_before: float | None
    ) -> None:
        self.formed, self.formed_at = formed, at
        self.since, self.failed_before = since, failed_before
        self.started: float | None = None
        self.reached: float | None = None
        self.met: float | None = None
        self.first: float | None = None
        self.checkpoint: float | None = None
        self.failed: float | None = None
        self.noticed: float | None = None
        self.is_of_user = False
        """Whether the generation was ended by a signal to the agent."""
        self.running = 0
        self.exited: float | None = None

    @property
    def ended(self) -> float | None:
        """When the generation's last worker exited."""
        return None if self.running else self.exited

    def take(self, event: Event, t: float, time: float) -> None:
        """Process an event from this generation."""
        match event:
            case WorkerStarted():
                self.started, self.running = t, self.running + 1
            case RanksReplaced(stayed=stayed):
                self.running += stayed
            case StoreReached(workers=workers, world_size=world_size):
                self.reached = t if self.reached is None else self.reached
                self.met = t if workers >= world_size else self.met
            case StepsReported(first=first):
                self.first = first
            case CheckpointFound(saved=saved):
                self.checkpoint = t - (time - saved)
            case FailureNoticed(after_s=after_s):
                self._notice(t)
                if self.failed is None and self.noticed is not None and not self.is_of_user:
                    self.failed = min(t - after_s, self.noticed)
            case WorkerExited(exitcode=exitcode) if self.running:
                if exitcode:
                    self._notice(t)
                self.running, self.exited = self.running - 1, t
            case SignalReceived():
                self.is_of_user = self.noticed is None
                self._notice(t)
            case GroupStopped() | SpawnerLost():
                self._notice(t)

    def _notice(self, t: float) -> None:
        """Record a failure or an order to stop, unless the workers have already exited."""
        if self.noticed is None and self.ended is None:
            self.noticed = t

    def worked_until(self, now: float) -> float:
        """Return the time when the workers failed, were stopped or ended, or `now` if they are
        still running.
        """
        known = (self.failed, self.noticed, self.ended, now)
        return next(at for at in known if at is not None)

    def ran_s(self, now: float) -> float:
        """Return how many seconds the generation's workers ran, or have been running so far."""
        return 0.0 if self.started is None else max(0.0, self.worked_until(now) - self.started)

    def repair(self) -> tuple[float, str] | None:
        """Return the time from the previous failure until this generation's workers resumed work,
        and the name of the phase that ended at that point.
        """
        if self.failed_before is not None:
            marks = ((self.first, "first_step"), (self.met, "init"), (self.started, "spawn"))
            for at, phase in marks:
                if at is not None:
                    return at - self.failed_before, phase
        return None

    def phases(self, now: float, *, knows_checkpoints: bool) -> Phases:
        """Return the generation's phases up to the time `now`."""
        until = self.worked_until(now)
        found = {"rendezvous": self.formed_at - self.since}
        at, unknown, is_told = self.formed_at, 0.0, True
        marks = (self.started, self.reached, self.met, self.first)
        for phase, mark in zip(("spawn", "imports", "init", "first_step"), marks, strict=True):
            if mark is None:
                is_told = False
                continue
            mark = max(at, min(mark, until))
            if is_told:
                found[phase] = mark - at
            else:
                unknown += mark - at  # this phase can't be separated from earlier ones
            at, is_told = mark, True
        if self.first is None:
            unknown += until - at
        else:
            lost = 0.0
            if self.noticed is not None and knows_checkpoints:
                saved = at if self.checkpoint is None else max(at, self.checkpoint)
                lost = until - min(saved, until)
            if self.noticed is None or knows_checkpoints:
                found["lost"] = lost
            found["productive"] = until - at - lost
        if self.failed is not None and self.noticed is not None:
            found["detect"] = self.noticed - self.failed
        end = self.noticed if self.noticed is not None else self.ended
        if end is not None:
            found["teardown"] = max(0.0, now - end)
        return Phases(**found, unknown=unknown)


class Ledger:
    """Keeps the time account for one agent's job.

    Args:
        began: when the agent started, on the events' clock.
        knows_checkpoints: whether the events include checkpoints (--checkpoints).
    """

    def __init__(self, began: float, *, knows_checkpoints: bool) -> None:
        self._began = began
        self._knows_checkpoints = knows_checkpoints
        self._generation: _Generation | None = None
        self._ended_at: float | None = None
        self._total = Phases()
        self._latest: list[GenerationPhases] = []
        self._generations = 0
        self._ran_s = 0.0
        self._failures = 0
        self._by_host: dict[str, int] = {}
        self._repairs = 0
        self._repairs_s = 0.0
        self._repaired_by = ""

    def step(self, event: Event, t: float, time: float) -> None:
        """Process an event. Events after the end of the job are ignored.

        Args:
            event: the event.
            t: the time of the event in seconds on the monotonic clock.
            time: the time of the event in seconds since 1970.
        """
        if self._ended_at is not None:
            return
        now = self._generation
        match event:
            case Formed():
                self._begin(event, t)
            case NotRestarting(failed_host=host):
                self._count_failure(host)
            case Ended():
                self._ended_at = t
            case _ if now is not None:
                now.take(event, t, time)

    def cold_restart(self) -> tuple[float, float] | None:
        """Return how long the last restart took, from the failure until all workers had connected
        to the store, and how much of this time passed between the workers' start and the first
        connection. Return None if unknown.
        """
        now = self._generation
        if now is None or now.started is None or now.reached is None or now.met is None:
            return None
        if now.failed_before is None:
            return None
        return now.met - now.failed_before, now.reached - now.started

    def cold_start_s(self) -> float | None:
        """Return how long it took until one of the job's first workers connected to the store.
        Return None after a restart.
        """
        now = self._generation
        if now is None or now.started is None or now.reached is None:
            return None
        return now.reached - now.started if now.failed_before is None else None

    def account(self, now: float, first_step: float | None = None) -> Account:
        """Return the account.

        Args:
            now: the current time on the events' clock.
            first_step: when a worker in the running generation first called progress(), if no event
                has reported it yet.
        """
        now = self._ended_at if self._ended_at is not None else now
        total, latest, ran_s = self._total, self._latest, self._ran_s
        repairs, repairs_s, by = self._repairs, self._repairs_s, self._repaired_by
        current = self._generation
        if current is not None:
            if current.first is None:
                current.first = first_step
            phases = current.phases(now, knows_checkpoints=self._knows_checkpoints)
            total, ran_s = _sum(total, phases), ran_s + current.ran_s(now)
            latest = [*latest, GenerationPhases(current.formed.generation, phases)]
            if (repair := current.repair()) is not None:
                repairs, repairs_s, by = repairs + 1, repairs_s + repair[0], repair[1]
        wall_s = max(0.0, now - self._began)
        works = total.productive
        return Account(
            wall_s=wall_s,
            total=total,
            goodput=min(1.0, works / wall_s) if works is not None and wall_s else None,
            is_most=self._failures > 0 and not self._knows_checkpoints,
            generations=self._generations,
            failures=self._failures,
            mttr_s=repairs_s / repairs if repairs else None,
            repaired_by=by,
            mtbf_s=ran_s / self._failures if self._failures else None,
            nodes=self._nodes(ran_s),
            latest=tuple(latest[-_MAX_SHOWN:]),
        )

    def _begin(self, formed: Formed, t: float) -> None:
        """Close the previous generation and begin the next one."""
        last, since, failed_before = self._generation, self._began, None
        if last is not None:
            since = last.ended if last.ended is not None else t
            phases = last.phases(since, knows_checkpoints=self._knows_checkpoints)
            self._total = _sum(self._total, phases)
            self._latest.append(GenerationPhases(last.formed.generation, phases))
            del self._latest[:-_MAX_SHOWN]
            self._ran_s += last.ran_s(since)
            if (repair := last.repair()) is not None:
                self._repairs_s += repair[0]
                self._repairs, self._repaired_by = self._repairs + 1, repair[1]
            if formed.restart > last.formed.restart or formed.failed_host:
                self._count_failure(formed.failed_host)
                failed_before = last.worked_until(since)
        self._generation = _Generation(formed, t, since, failed_before)
        self._generations += 1

    def _count_failure(self, host: str) -> None:
        self._failures += 1
        if host and (host in self._by_host or len(self._by_host) < _MAX_HOSTS):
            self._by_host[host] = self._by_host.get(host, 0) + 1

    def _nodes(self, ran_s: float) -> tuple[NodeFailures, ...]:
        found = sorted(self._by_host.items(), key=lambda each: (-each[1], each[0]))
        return tuple(NodeFailures(host, n, ran_s / n) for host, n in found[:_MAX_SHOWN])


def _sum(one: Phases, other: Phases) -> Phases:
    """Add up the phases. An unknown phase counts as zero."""

    def add(first: float | None, second: float | None) -> float | None:
        return first if second is None else second if first is None else first + second

    sums: dict[str, Any] = dict(zip(Phases._fields, map(add, one, other), strict=True))
    return Phases(**sums)


def is_worth_telling(account: Account) -> bool:
    """Return whether an account is worth showing. It isn't if the job was short and reported no
    steps.
    """
    known = account.goodput is not None
    return account.generations > 0 and (known or account.wall_s >= _SHORT_S)


def format_account(account: Account) -> list[str]:
    """Format an account as lines of text."""
    wall = format_duration(account.wall_s, digits=1)
    if account.goodput is None:
        why = "the workers have not reported any steps (relight.worker.progress)"
        lines = [f"goodput over {wall} is unknown: {why}"]
    else:
        most = "at most " if account.is_most else ""
        lines = [f"goodput {most}{account.goodput:.0%} over {wall}"]
        if account.is_most:
            lines[0] += "; with --checkpoints, work lost since the last checkpoint is counted too"
    lines.append(f"time: {_times(account.total)}")
    if account.failures:
        text = pluralize(account.failures, "failure")
        if account.mttr_s is not None:
            by = PHASES[account.repaired_by]
            text += f", MTTR {format_duration(account.mttr_s, digits=1)} (until {by})"
        if account.mtbf_s is not None:
            text += f", MTBF {format_duration(account.mtbf_s, digits=1)}"
        nodes = [f"{n.host} {n.failures}" for n in account.nodes[:5]]
        if account.failures > 1 and nodes:
            text += f"; by node: {', '.join(nodes)}{', …' if len(account.nodes) > 5 else ''}"
        lines.append(text)
    return lines


def _times(phases: Phases) -> str:
    """Format the phases that took the most time, starting with the longest."""
    known = {name: seconds for name, seconds in phases._asdict().items() if seconds is not None}
    shown = sorted(known, key=lambda name: -known[name])
    parts = [
        f"{PHASES[n]} {format_duration(known[n], digits=1)}" for n in shown if known[n] >= 0.05
    ]
    return ", ".join(parts) or "none"
