"""An agent's view of its job at one moment, for `relight status`, `list`, `logs` and others.

It travels as JSON over a Unix socket (agent/status/job_socket), and is kept in a small file for a
while after the job has ended (processes/running_jobs). base/fields validates it.
"""

from typing import NamedTuple

from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus

WAITING, RUNNING, STOPPING, DONE, ENDED = "waiting", "running", "stopping", "done", "ended"
"""States of a node, in this order: without workers; workers run; workers are being stopped; all
succeeded, and it waits for other nodes; the job is over here."""


class RankUse(NamedTuple):
    """Usage of a worker and its descendants until `seen_at`: seconds of CPU time, and their present
    memory in bytes, with shared pages counted for each process. `step` is the last reported step
    (`relight.worker.progress`), from `step_age_s` seconds before `seen_at`, or None; `total` is the
    number of steps, if the script tells it. `reported` are the numbers of `relight.worker.report`
    and `--watch-metric`, as `loss=0.31`.
    """

    seen_at: float
    cpu_s: float
    memory: int
    step: int | None = None
    step_age_s: float = 0.0
    reported: tuple[str, ...] = ()
    total: int | None = None


class RankSnapshot(NamedTuple):
    """One worker. `exitcode` is None while it runs; `stop_signal` is the signal that asked it to
    stop before it ended, 0 for none. `stdout` and `stderr` are the paths of its log files, empty
    without them; `last_line` is its last line of output, as far as the agent saw it. `use` is,
    after its end, the last sample of the agent, or None if nobody asked before. `ended` is the time
    of its end, 0 while it runs.
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
    """A number of a node over time: a value for every `every_s` seconds from `began` on (seconds
    since 1970), None where it is unknown (core/status/charts).
    """

    name: str
    began: float
    every_s: float
    values: tuple[float | None, ...]


class NodeSnapshot(NamedTuple):
    """One agent and its workers. Times are seconds since 1970.

    `id` is `NAME-PID`. `command` is the script and its arguments, without secrets; `directory` is
    the working directory of the command. `generation` is -1 before the first one. `cause` is the
    reason for forming the generation. `exit_code` is None until the job has ended here, and
    `reason` explains the end; `blamed` are the known ranks that caused a failure, on any node.
    `run_directory` has the logs and the event log, if they are kept. `account` is the use of time.
    `first_step` is when a worker of the generation has reported its first step, on this node.
    `version` is the agent's version of relight. `topology` is the node's place in the network, with
    --rank-order=topology. `scheduler` and `scheduler_job` are empty for a job
    without a scheduler. `preload` is None for a job that has ended or imports nothing ahead.
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
    """A question to an agent: the end of a worker's output that is not in a file. `stream` is
    stdout, stderr or combined. An agent whose node does not have the rank answers nothing.
    """

    local_rank: int
    stream: str
    rank: int | None = None


class EventsAfter(NamedTuple):
    """A question to an agent: the events that it has in memory whose numbers are above `number`, as
    lines; with `follow`, then also each that comes, until the job is over here.
    """

    number: int
    follow: bool


class Stacks(NamedTuple):
    """A question to an agent: where its workers are (core/group/node_stacks)."""


class ClusterQuery(NamedTuple):
    """A question to the agents of all nodes of the job, in the form that each receives."""

    question: str


Question = Output | EventsAfter | Stacks | ClusterQuery


class NodeAnswer(NamedTuple):
    """The answer of the agent on a host; None if it did not answer in time."""

    host: str
    answer: str | None


class NodeAnswers(NamedTuple):
    """The answer to `ClusterQuery`, empty while the agent lacks a coordinator."""

    nodes: tuple[NodeAnswer, ...]


class WholeJob(NamedTuple):
    """A job on all its nodes, as an agent of it sees it: first that agent's own. `silent` are the
    hosts whose agents have not answered.
    """

    nodes: tuple[NodeSnapshot, ...]
    silent: tuple[str, ...] = ()


def early_exits(job: WholeJob) -> str:
    """Return which ranks have finished while others still run, in one line; empty for none."""
    own = job.nodes[0]
    ranks = [(node, rank) for node, rank in ranks_of(job) if node.generation == own.generation]
    ended = [
        rank for _, rank in ranks if rank.exitcode == 0 and not rank.stop_signal and rank.ended
    ]
    running = [rank.rank for node, rank in ranks if rank.exitcode is None and node.state == RUNNING]
    if own.state not in (RUNNING, DONE) or not (ended and running):
        return ""
    from relight.core.group.early_exits import of_ranks

    ages_s = [max(0.0, own.taken - rank.ended) for rank in ended]
    return of_ranks([rank.rank for rank in ended], ages_s, running)


def ranks_of(job: WholeJob) -> list[tuple[NodeSnapshot, RankSnapshot]]:
    """Return the ranks of all nodes, each with its node, sorted by rank. If two share a number, the
    later generation wins. A waiting node still reports how its last workers ended.
    """
    found = {
        each.rank: (node, each)
        for node in sorted(job.nodes, key=lambda node: node.generation)
        for each in node.ranks
    }
    return [found[rank] for rank in sorted(found)]
