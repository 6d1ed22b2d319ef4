"""The configuration of one node's agent. `prepare` creates it from the command line, and `agent`
runs it.
"""

from typing import TYPE_CHECKING, NamedTuple

from relight.core.group.group_types import GroupSettings
from relight.core.workers.worker_command import Command
from relight.flags.spec import LaunchSpec
from relight.output.worker_logs import LogSettings

if TYPE_CHECKING:
    from relight.agent.health_check import HealthCheckSettings
    from relight.rendezvous.config import Meeting
    from relight.warm.worker_program import WorkerProgram


class AgentConfig(NamedTuple):
    """The launch's options, and the values that `prepare` derived from them for this machine: the
    workers' command and number, and the nodes' rendezvous. Times are in seconds.

    The `store_host` and `store_port` fields are the address of the workers' store. If the port is
    0, the first free port in `store_ports` is used, or any free port if `store_ports` is empty. In
    a single-node job, `meeting` is None, and the `settings` apply to the node's own group. In a
    multi-node job, this node joins the group with these settings. The `facts` are expected to be
    the same on all nodes (`host/env_fingerprint`). Workers have `grace_s` seconds to exit between
    the stop signal and SIGKILL. A worker that spends `stuck_after_s` in an uninterruptible call
    counts as failed; 0 disables this limit. The `cpus` field contains one affinity mask per worker,
    or is empty. The `run_directory` contains the logs, and `scratch` is the parent of a directory
    that is removed when the job ends. Both `run_directory` and `scratch` may be empty.
    The `worker_program` field is only used with --preload. The `why_all_restart` field is the
    reason why ranks can't keep their processes when another rank fails, or empty if they can.
    """

    spec: LaunchSpec
    command: Command
    local_world_size: int
    store_host: str
    store_port: int
    cpus: tuple[frozenset[int], ...]
    grace_s: float
    stuck_after_s: float
    run_directory: str
    scratch: str
    logs: LogSettings
    health_check: "HealthCheckSettings | None"
    why_all_restart: str
    settings: GroupSettings
    meeting: "Meeting | None"
    facts: dict[str, str]
    worker_program: "WorkerProgram | None"
    store_ports: range = range(0)
