"""An agent's view of its job at one moment, for `relight status`, `list`, `logs` and other
commands.

It is sent as JSON over a Unix socket (agent/status/job_socket), and kept in a small file for a
while after the job has ended (processes/running_jobs). base/fields validates it.
"""

from typing import NamedTuple

from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus

WAITING, RUNNING, STOPPING, DONE, ENDED = "waiting", "running", "stopping", "done", "ended"
"""The states of a node, in this order: without workers, with running workers, stopping its workers,
waiting for other nodes after its workers have succeeded, and after the end of the job.
"""


class RankUse(NamedTuple):
    """Resource usage by a worker and its descendants until `seen_at`. This is their CPU time in
    seconds, and their current memory in bytes, with shared pages counted once per process. `step`
    is the last reported step (`relight.worker.progress`), reported `step_age_s` seconds before
    `seen_at`, or None. `total` is the total number of steps, if the script reports it. `reported`
    contains the numbers from `relight.worker.report` and `--watch-metric`, such as `loss=0.31`.
    """

    seen_at: float
    cpu_s: float
    memory: int
    step: int | None = None
    step_age_s: float = 0.0
    reported: tuple[str, ...] = ()
    total: int | None = None


class RankSnapshot(NamedTuple):
    """One worker. `exitcode` is None while it is running. `stop_signal` is the stop signal that it
    was sent before it ended, or 0. `stdout` and `stderr` are the paths of its log
    files, or empty. `last_line` is the last line of its output that the agent has seen. After the
    worker has ended, `use` is the agent's last sample, or None without an earlier query.
    `ended` is when the worker ended, or 0 while it is running.
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
    """A node's number over time. There is one value for every `every_s` seconds, starting at
    `began` (in seconds since 1970), or None if the value is unknown (core/status/charts).
    """

    name: str
    began: float
    every_s: float
    values: tuple[float | None, ...]


class NodeSnapshot(NamedTuple):
    """One agent and its workers. Times are in seconds since 1970.

    `id` is `NAME-PID`. `command` is the script and its arguments, without secrets. `directory` is
    the command's working directory. `generation` is -1 before the first generation. `cause` is why
    the generation was formed. `exit_code` is None until the job has ended here, and `reason`
    explains the end. `blamed` are the ranks on any node that are known to have caused a failure.
    `run_directory` contains the logs and the event log, if they are kept. `account` is how the job
    spent its time. `first_step` is when a worker on this node reported the generation's first step.
    `version` is the agent's version of relight. `topology` is the node's place in the network, with
    --rank-order=topology. `scheduler` and `scheduler_job` are empty for a job that was started
    without a scheduler. `preload` is None for a job that has ended or does not import ahead.
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


class Output(NamedTuple):
    """A query to an agent for the end of a worker's output, for output that is not in a file.
    `stream` is stdout, stderr or combined. The reply is empty if the rank is not on the agent's
    node.
    """

    local_rank: int
    stream: str
    rank: int | None = None


class EventsAfter(NamedTuple):
    """A query to an agent for the events in its memory whose numbers are above `number`, as lines.
    If `follow` is set, the agent also sends later events until the job is over here.
    """

    number: int
    follow: bool


class Stacks(NamedTuple):
    """A query to an agent for its workers' stacks (core/group/node_stacks)."""


class ClusterQuery(NamedTuple):
    """A query to the agents on all nodes in the job. `question` is the query in the form that each
    agent receives.
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
    """A job on all its nodes, as seen by one of its agents. That agent's own node comes first.
    `silent` are the hosts whose agents have not replied.
    """

    nodes: tuple[NodeSnapshot, ...]
    silent: tuple[str, ...] = ()


def early_exits(job: WholeJob) -> str:
    """Describe in one line which ranks have finished while others are still running, or return an
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
    from relight.core.group.early_exits import describe_ranks

    ages_s = [max(0.0, own.taken - rank.ended) for rank in ended]
    return describe_ranks([rank.rank for rank in ended], ages_s, running)


def ranked_workers(job: WholeJob) -> list[tuple[NodeSnapshot, RankSnapshot]]:
    """Return the ranks on all nodes, each with its node, sorted by rank. If two of them have the
    same number, the later generation wins, because a waiting node still reports how its last
    workers ended.
    """
    found = {
        each.rank: (node, each)
        for node in sorted(job.nodes, key=lambda node: node.generation)
        for each in node.ranks
    }
    return [found[rank] for rank in sorted(found)]
