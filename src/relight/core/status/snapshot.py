"""An agent's view of its job at one moment, for `relight status`, `list`, `logs` and other
commands.

A snapshot is sent as JSON over a Unix socket (agent/status/job_socket), and kept in a small file
for a while after the job has ended (processes/running_jobs). Snapshots are validated by
base/fields.
"""

from typing import NamedTuple

from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus

WAITING, RUNNING, STOPPING, DONE, ENDED = "waiting", "running", "stopping", "done", "ended"
"""The states of a node. In order, the node has no workers, has running workers, is stopping its
workers, is waiting for other nodes after its workers have succeeded, or is in a job that has ended.
"""
STATUS_FILE = "status.json"
"""The file in a run directory with the latest snapshot of a submitted job's agent."""


class RankUse(NamedTuple):
    """The resource usage of a worker and its descendants until `seen_at`. It consists of their CPU
    time in seconds and their current memory in bytes, with shared pages counted once per process.
    Both are 0 if the worker ended before it was sampled.
    The `step` field is the last step that the worker reported (`relight.worker.progress`), or None,
    and `step_age_s` is how many seconds before `seen_at` it was reported. The `total` field is the
    total number of steps, if the script reports it. The `reported` field contains the numbers from
    `relight.worker.report` and `--watch-metric`, such as `loss=0.31`.
    """

    seen_at: float
    cpu_s: float
    memory: int
    step: int | None = None
    step_age_s: float = 0.0
    reported: tuple[str, ...] = ()
    total: int | None = None


class RankSnapshot(NamedTuple):
    """One worker. The `exitcode` field is None while the worker is running. The `stop_signal` field
    is the stop signal that the worker received before it exited, or 0. The fields `stdout` and
    `stderr` are the paths of the worker's log files, or empty. The `last_line` field is the last
    line of the worker's output that the agent has seen. After the worker has exited, the `use`
    field is the agent's last sample with the last reported step, or None if there is neither. The
    `ended` field is the time when the worker exited, or 0 while it is running.
    """

    rank: int
    local_rank: int
    pid: int
    exitcode: int | None
    stop_signal: int
    stdout: str
    stderr: str
    last_line: str
    use: RankUse | None = None
    ended: float = 0.0


class Chart(NamedTuple):
    """A time series of one of a node's numbers. There is one value for every `every_s` seconds,
    starting at `began` (in seconds since 1970), or None if the value is unknown
    (core/status/charts).
    """

    name: str
    began: float
    every_s: float
    values: tuple[float | None, ...]


class NodeSnapshot(NamedTuple):
    """One agent and its workers. Times are in seconds since 1970.

    The `id` field has the form `NAME-PID`. The `command` field is the script and its arguments,
    without secrets. The `directory` field is the command's working directory. The `generation`
    field is -1 before the first generation. The `cause` field is the reason why the generation was
    formed. The `exit_code` field is None until the job has ended on this node, and `reason`
    explains why it ended. The `blamed` field contains the ranks on any node that are known to have
    caused a failure. The `run_directory` contains the logs and the event log, if they are kept. The
    `account` field describes how the job spent its time. The `first_step` field is the time when a
    worker on this node reported the generation's first step. The `version` field is the agent's
    version of relight. The `topology` field is the node's place in the network, if
    --rank-order=topology is set. The fields `scheduler` and `scheduler_job` are empty for a job
    that was started without a scheduler. The `replica` field is the agent's replica number in a
    submitted job, or None. The `preload` field is None for a job that has ended or
    does not import modules in advance.
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
    version: str = ""
    blamed: tuple[int, ...] = ()
    user: str = ""
    scheduler: str = ""
    scheduler_job: str = ""
    preload: PreloadStatus | None = None
    charts: tuple[Chart, ...] = ()
    first_step: float | None = None
    topology: str = ""
    replica: int | None = None


class Output(NamedTuple):
    """A query to an agent for the end of a worker's output. It is used for output that is not in a
    file. The `stream` field is stdout, stderr or combined. The reply is empty if the rank is not on
    the agent's node.
    """

    local_rank: int
    stream: str
    rank: int | None = None


class EventsAfter(NamedTuple):
    """A query to an agent for the events in its memory whose numbers are above `number`, as lines.
    If the `follow` field is set, the agent also sends later events, until the job has ended on its
    node.
    """

    number: int
    follow: bool


class Stacks(NamedTuple):
    """A query to an agent for its workers' stacks (core/status/node_stacks)."""


class ClusterQuery(NamedTuple):
    """A query to the agents on all nodes in the job. The `question` field is the query in the form
    in which each agent receives it.
    """

    question: str


Question = Output | EventsAfter | Stacks | ClusterQuery


class NodeAnswer(NamedTuple):
    """The reply from the agent on a host, or None if it did not reply in time."""

    host: str
    answer: str | None


class NodeAnswers(NamedTuple):
    """The reply to `ClusterQuery`. It is empty without a coordinator."""

    nodes: tuple[NodeAnswer, ...]


class WholeJob(NamedTuple):
    """The state of a job on all its nodes, as seen by one of its agents. This agent's own node
    comes first. The `silent` field lists the hosts whose agents have not replied.
    """

    nodes: tuple[NodeSnapshot, ...]
    silent: tuple[str, ...] = ()


def early_exits(job: WholeJob) -> str:
    """Return a line about the ranks that have finished while other ranks are still running, or an
    empty string.
    """
    own = job.nodes[0]
    ranks = [
        (node, rank) for node, rank in ranked_workers(job) if node.generation == own.generation
    ]
    ended = [
        rank for _, rank in ranks if rank.exitcode == 0 and not rank.stop_signal and rank.ended
    ]
    running = [rank.rank for node, rank in ranks if rank.exitcode is None and node.state == RUNNING]
    if own.state not in (RUNNING, DONE) or not (ended and running):
        return ""
    from relight.core.workers.early_exits import describe_ranks

    ages_s = [max(0.0, own.taken - rank.ended) for rank in ended]
    return describe_ranks([rank.rank for rank in ended], ages_s, running)


def ranked_workers(job: WholeJob) -> list[tuple[NodeSnapshot, RankSnapshot]]:
    """Return the ranks on all nodes, each with its node, sorted by rank. If two ranks have the same
    number, the one from the later generation is returned, because a waiting node still reports how
    its last workers ended.
    """
    found = {
        each.rank: (node, each)
        for node in sorted(job.nodes, key=lambda node: node.generation)
        for each in node.ranks
    }
    return [found[rank] for rank in sorted(found)]
