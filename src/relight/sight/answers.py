"""What an agent answers: a snapshot of its job, the end of a worker's output, or its events."""

import json
import os
import socket
import time

from relight.core import fields
from relight.core.messages import GenerationFormed
from relight.core.snapshot import (
    DONE,
    ENDED,
    RUNNING,
    STOPPING,
    WAITING,
    EventsAfter,
    NodeSnapshot,
    Output,
    Question,
    RankSnapshot,
)
from relight.events import Recorded, line_of
from relight.host.run_jobs import JobDirectory
from relight.job import privacy
from relight.sight.job_socket import JobSocket, View
from relight.values import STDERR, STDOUT
from relight.worker_group import WorkerGroup

_MOST_WORDS, _MOST_WORD, _MOST_LINE = 200, 1000, 300


def answer(server: JobSocket, question: bytes) -> tuple[bytes, bool]:
    """Return the answer to a line of a client, empty if it is no question, and whether the client
    gets each further event too.
    """
    if not question.strip():
        return json.dumps(fields.to_json(snapshot(server))).encode(), False
    try:
        asked: Question = fields.message(Question, fields.decode(question))
    except fields.Malformed:
        return b"", False
    match asked:
        case EventsAfter(number, follow):
            return b"".join(map(event_line, server.look().journal.events.after(number))), follow
        case Output(local_rank, name):
            workers = server.look().workers
            if workers is None:
                return b"", False
            streams = {"stdout": (STDOUT,), "stderr": (STDERR,)}.get(name, (STDOUT, STDERR))
            return b"".join(workers.logs.tail(local_rank, stream) for stream in streams), False


def event_line(recorded: Recorded) -> bytes:
    """Return an event as a line of an answer."""
    return line_of(recorded).encode() + b"\n"


def keep_last(server: JobSocket, exit_code: int, reason: str) -> None:
    """Keep how the job was at its end.

    Raises:
        OSError: it can't be written.
    """
    last = snapshot(server)._replace(state=ENDED, exit_code=exit_code, reason=reason)
    JobDirectory(server.job.command.env.variables).keep(last)


def snapshot(server: JobSocket) -> NodeSnapshot:
    """Return how the job is now."""
    job, spec, view = server.job, server.job.command.spec, server.look()
    formed = view.workers.formed if view.workers is not None else None
    formed = view.state if isinstance(view.state, GenerationFormed) else formed
    words = privacy.of_words((spec.script, *spec.script_args[:_MOST_WORDS]))
    return NodeSnapshot(
        id=server.id,
        name=server.name,
        pid=os.getpid(),
        host=socket.gethostname(),
        run_id=job.command.run_id,
        command=tuple(word[:_MOST_WORD] for word in words),
        directory=os.getcwd(),
        role=spec.role,
        started=server.began,
        taken=time.time(),
        state=_state(view),
        generation=formed.generation.number if formed is not None else -1,
        restart=view.restart,
        max_restarts=job.settings.max_restarts,
        cause=formed.generation.cause if formed is not None else "",
        node=formed.place.group_rank if formed is not None else -1,
        nodes=formed.place.group_world_size if formed is not None else 0,
        world_size=formed.place.world_size if formed is not None else 0,
        exit_code=None,
        reason="",
        run_directory=job.run_directory,
        ranks=_ranks(view.workers) if view.workers is not None else (),
        account=view.account,
    )


def _state(view: View) -> str:
    match view.state:
        case WorkerGroup() as workers if workers.done:
            return DONE
        case WorkerGroup() as workers:
            supervisor = workers.supervisor
            return RUNNING if supervisor is None or supervisor.is_running else STOPPING
    return WAITING


def _ranks(workers: WorkerGroup) -> tuple[RankSnapshot, ...]:
    supervisor = workers.supervisor
    if supervisor is None:
        return ()
    ends = {end.local_rank: end for end in supervisor.ends}
    return tuple(
        RankSnapshot(
            rank=rank,
            local_rank=local_rank,
            pid=supervisor.workers.pids.get(local_rank, 0),
            exitcode=ends[local_rank].exitcode if local_rank in ends else None,
            asked=ends[local_rank].asked if local_rank in ends else 0,
            stdout=workers.logs.path(local_rank, STDOUT),
            stderr=workers.logs.path(local_rank, STDERR),
            last_line=_last_line(workers, local_rank),
        )
        for local_rank, rank in enumerate(supervisor.workers.ranks)
    )


def _last_line(workers: WorkerGroup, local_rank: int) -> str:
    """Return the last line on a worker's stdout, or else on its stderr."""
    for stream in (STDOUT, STDERR):
        lines = workers.logs.tail(local_rank, stream).decode(errors="replace").splitlines()
        found = next((line for line in reversed(lines) if line.strip()), "")
        if found:
            return found[-_MOST_LINE:]
    return ""
