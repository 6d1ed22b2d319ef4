"""What an agent says of its job at one moment, to `relight status`, `list`, `logs` and others.

It travels as JSON over a Unix socket (sight/job_socket), and stays in a small file for a while when
the job has ended (host/run_jobs). core/fields checks it.
"""

from relight.core.goodput import Account
from relight.typed import NamedTuple

WAITING, RUNNING, STOPPING, DONE, ENDED = "waiting", "running", "stopping", "done", "ended"
"""States of a node: it has no workers; they run; they are being stopped; all have succeeded, and it
waits for other nodes; the job is over here."""


class RankSnapshot(NamedTuple):
    """One worker. `exitcode` is None while it runs; `asked` is the signal that asked it to stop
    before it ended, 0 for none. `stdout` and `stderr` are the paths of its log
    files, empty without them; `last_line` is the last that it printed, as far as the agent saw it.
    """

    rank: int
    local_rank: int
    pid: int
    exitcode: int | None
    asked: int
    stdout: str
    stderr: str
    last_line: str


class NodeSnapshot(NamedTuple):
    """One agent and its workers. Times are seconds since 1970.

    `id` is `NAME-PID`. `command` is the script and its arguments, without secrets; `directory` is
    where they were given. `generation` is -1 before the first one. `cause` is why the generation
    was formed. `exit_code` is None until the job has ended here, and `reason` says why it has.
    `run_directory` has the logs and the event log, if they are kept. `account` says where the time
    has gone.
    """

    id: str
    name: str
    pid: int
    host: str
    run_id: str
    command: tuple[str, ...]
    directory: str
    role: str
    started: float
    taken: float
    state: str
    generation: int
    restart: int
    max_restarts: int
    cause: str
    node: int
    nodes: int
    world_size: int
    exit_code: int | None
    reason: str
    run_directory: str
    ranks: tuple[RankSnapshot, ...]
    account: Account | None = None


class Output(NamedTuple):
    """A question to an agent: the end of what a worker has printed, where no file has it. `stream`
    is stdout, stderr or combined.
    """

    local_rank: int
    stream: str


class EventsAfter(NamedTuple):
    """A question to an agent: the events that it has in memory whose numbers are above `number`, as
    lines; with `follow`, then also each that comes, until the job is over here.
    """

    number: int
    follow: bool


Question = Output | EventsAfter
