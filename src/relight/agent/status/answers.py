"""Computes an agent's replies. A reply contains a snapshot of the job, the end of a worker's
output, the agent's events, or the workers' stacks.
"""

import json
import os
import time
from collections.abc import Callable

from relight.agent.node import Node
from relight.agent.status.view import ServedJob
from relight.agent.worker_group import WorkerGroup
from relight.base import fields, redaction
from relight.base.text import last_line
from relight.base.values import STDERR, STDOUT, whole
from relight.core.group.messages import GenerationFormed
from relight.core.status.snapshot import (
    DONE,
    ENDED,
    RUNNING,
    STOPPING,
    WAITING,
    ClusterQuery,
    EventsAfter,
    NodeSnapshot,
    Output,
    Question,
    RankSnapshot,
    RankUse,
    Stacks,
)
from relight.events.event_types import LoggedEvent, format_line
from relight.host import background, job_origin, system
from relight.rendezvous.config import REPLICA

_MAX_WORDS, _MAX_WORD, _MAX_LINE = 200, 1000, 300
_LAST = 4096
"""Number of bytes to search for the last line at the end of a stream."""


def answer(served: ServedJob, question: bytes, reply: Callable[[bytes, bool], None]) -> None:
    """Process a client's request line, and call `reply` either immediately or later. The arguments
    of `reply` are the response (empty for an invalid query) and whether the client also receives
    each further event.
    """
    if not question.strip():
        reply(to_text(snapshot(served)).encode(), False)
        return
    try:
        asked: Question | None = fields.message(Question, fields.decode(question))
    except fields.Malformed:
        asked = None
    match asked:
        case EventsAfter(number, follow):
            reply(b"".join(map(event_line, served.journal.events.after(number))), follow)
        case Output(local_rank, name, rank):
            reply(_output(served.node.workers, local_rank, name, rank), False)
        case Stacks():
            _take_stacks(served, lambda text: reply(text.encode(), False))
        case _:
            reply(b"", False)


def event_line(recorded: LoggedEvent) -> bytes:
    """Return an event as one line in a response."""
    return format_line(recorded).encode() + b"\n"


def _output(workers: WorkerGroup | None, local_rank: int, name: str, rank: int | None) -> bytes:
    if workers is None or workers.supervisor is None:
        return b""
    ranks = workers.supervisor.workers.ranks
    if rank is not None:
        if rank not in ranks:
            return b""
        local_rank = ranks.index(rank)
    streams = {"stdout": (STDOUT,), "stderr": (STDERR,)}.get(name, (STDOUT, STDERR))
    return b"".join(workers.logs.tail(local_rank, stream) for stream in streams)


def for_all_nodes(question: bytes) -> str | None:
    """Parse a client's request line as a query to all nodes. Return None for any other line."""
    try:
        found: ClusterQuery = fields.record(ClusterQuery, fields.decode(question))
    except fields.Malformed:
        return None
    return found.question


def answer_node(served: ServedJob, question: str, reply: Callable[[str], None]) -> None:
    """Process another node's query, and call `reply` either immediately or later. The reply omits
    the workers' command, because it is the same on the other node.
    """
    if question.strip():
        answer(
            served,
            question.encode(),
            lambda data, _: reply(data.decode(errors="replace")[-fields.MAX_ANSWER :]),
        )
        return
    own = snapshot(served)._replace(command=(), directory="", preload=None)
    text = to_text(own)
    if len(text) > fields.MAX_ANSWER:
        ranks = tuple(rank._replace(last_line="") for rank in own.ranks)
        text = to_text(own._replace(ranks=ranks, charts=()))
    reply(text)


def _take_stacks(served: ServedJob, reply: Callable[[str], None]) -> None:
    """Read the workers' stacks in a thread, because each stack takes a few milliseconds."""
    from relight.core.status import node_stacks
    from relight.stacks.worker_state import take_stacks

    workers = served.node.workers
    if workers is None or (supervisor := workers.supervisor) is None:
        reply(node_stacks.written(-1, {}))
        return
    every, are_frozen = supervisor.workers.pids, supervisor.are_frozen
    pids = {rank: every[rank] for rank in supervisor.alive if rank in every}
    ranks, generation = supervisor.workers.ranks, workers.formed.generation.number

    def work() -> str:
        found = take_stacks(pids, are_frozen=are_frozen)
        stacks = {ranks[local]: (pids[local], stack) for local, stack in found.items()}
        return node_stacks.written(generation, stacks)

    def done(result: str | Exception) -> None:
        text = result if isinstance(result, str) else ""
        served.loop.run_guarded(lambda: reply(text), "the stacks of the workers")

    background.call(served.loop, work, done)


def snapshot(served: ServedJob) -> NodeSnapshot:
    """Return the job's current state."""
    config, node, preload, numbers = served.config, served.node, served.preload, served.numbers
    spec, workers = config.spec, node.workers
    formed = workers.formed if workers is not None else None
    formed = node.state if isinstance(node.state, GenerationFormed) else formed
    words = redaction.redact_argv((spec.script, *spec.script_args[:_MAX_WORDS]))
    exit_code, reason = served.end or (None, "")
    origin = job_origin.from_environment(config.command.env.variables)
    return NodeSnapshot(
        id=served.id,
        name=served.name,
        pid=os.getpid(),
        host=origin.host,
        run_id=config.command.run_id,
        command=tuple(word[:_MAX_WORD] for word in words),
        directory=os.getcwd(),
        role=spec.role,
        started=served.began,
        taken=time.time(),
        state=_state(node) if served.end is None else ENDED,
        generation=formed.generation.number if formed is not None else -1,
        restart=node.restart,
        max_restarts=config.settings.max_restarts,
        cause=formed.generation.cause if formed is not None else "",
        node=formed.place.group_rank if formed is not None else -1,
        nodes=formed.place.group_world_size if formed is not None else 0,
        world_size=formed.place.world_size if formed is not None else 0,
        exit_code=exit_code,
        reason=redaction.redact_text(reason),
        run_directory=config.run_directory,
        ranks=_ranks(served, workers) if workers is not None else (),
        account=served.account(),
        version=origin.version,
        blamed=node.end.blamed if node.end is not None else (),
        user=origin.user,
        scheduler=origin.scheduler,
        scheduler_job=origin.scheduler_job,
        preload=preload.status() if preload is not None and served.end is None else None,
        charts=numbers.charts() if numbers is not None else (),
        first_step=_first_step(served, workers),
        topology=config.meeting.topology if config.meeting is not None else "",
        replica=whole(config.command.env.get(REPLICA)),
    )


def to_text(snapshot: NodeSnapshot) -> str:
    """Return a snapshot as JSON."""
    return json.dumps(fields.to_json(snapshot), ensure_ascii=False)


def _state(node: Node) -> str:
    match node.state:
        case WorkerGroup() as workers if workers.have_succeeded:
            return DONE
        case WorkerGroup() as workers:
            supervisor = workers.supervisor
            return RUNNING if supervisor is None or supervisor.is_running else STOPPING
    return WAITING


def _first_step(served: ServedJob, workers: WorkerGroup | None) -> float | None:
    span = workers.span() if workers is not None else None
    return None if span is None else time.time() - served.loop.now() + span[0]


def _ranks(served: ServedJob, workers: WorkerGroup) -> tuple[RankSnapshot, ...]:
    supervisor = workers.supervisor
    if supervisor is None:
        return ()
    ends = {end.local_rank: end for end in supervisor.ends}
    boot = time.time() - served.loop.now()
    pids = supervisor.workers.pids
    latest = served.uses | _uses(served, workers)
    served.uses = {pid: latest[pid] for pid in pids.values() if pid in latest}
    return tuple(
        RankSnapshot(
            rank=rank,
            local_rank=local_rank,
            pid=pids.get(local_rank, 0),
            exitcode=ends[local_rank].exitcode if local_rank in ends else None,
            stop_signal=ends[local_rank].stop_signal if local_rank in ends else 0,
            stdout=workers.logs.path(local_rank, STDOUT),
            stderr=workers.logs.path(local_rank, STDERR),
            last_line=_last_line(workers, local_rank),
            use=served.uses.get(pids.get(local_rank, 0)),
            ended=boot + ends[local_rank].at if local_rank in ends else 0.0,
        )
        for local_rank, rank in enumerate(supervisor.workers.ranks)
    )


def _uses(served: ServedJob, workers: WorkerGroup) -> dict[int, RankUse]:
    """Return the running workers' resource usage and the last step of those that have ended, keyed
    by pid.
    """
    supervisor = workers.supervisor
    assert supervisor is not None
    reported = served.numbers.reported() if served.numbers is not None else {}
    totals = workers.memory.totals()
    progress, now, seen_at = workers.memory.progress(), time.monotonic(), time.time()
    found = {}
    for local_rank, pid in supervisor.workers.pids.items():
        step, done_at = progress.get(local_rank, (None, now))
        if local_rank not in supervisor.alive:
            if step is not None:
                last = served.uses.get(pid) or RankUse(0.0, 0.0, 0)
                stepped_at = seen_at - now + done_at
                last_seen_at = max(last.seen_at, stepped_at)
                found[pid] = last._replace(
                    seen_at=last_seen_at,
                    step=step,
                    step_age_s=last_seen_at - stepped_at,
                    reported=reported.get(local_rank, last.reported),
                    total=totals.get(local_rank),
                )
        elif pid:
            every = (pid, *system.tree(pid))
            found[pid] = RankUse(
                seen_at=seen_at,
                cpu_s=sum(system.usage(each)[0] for each in every),
                memory=sum(system.resident(each) for each in every),
                step=step,
                step_age_s=max(0.0, now - done_at),
                reported=reported.get(local_rank, ()),
                total=totals.get(local_rank),
            )
    return found


def _last_line(workers: WorkerGroup, local_rank: int) -> str:
    """Return the last line of a worker's stdout or, if stdout is empty, of its stderr."""
    for stream in (STDOUT, STDERR):
        if found := last_line(
            workers.logs.tail(local_rank, stream, _LAST).decode(errors="replace")
        ):
            return found[-_MAX_LINE:]
    return ""
