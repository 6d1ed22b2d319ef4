"""One node's part of a job: made by `prepare` from the command line, run by `agent`."""

from typing import TYPE_CHECKING, NamedTuple

from relight.core.group.group_types import GroupSettings
from relight.core.workers.worker_command import Command

if TYPE_CHECKING:
    from relight.rendezvous.config import Meeting
    from relight.warm.worker_program import WorkerProgram


class AgentConfig(NamedTuple):
    """The workers' command and number, and how the nodes meet. Times in seconds.

    `store_host` and `store_port` are the address of the workers' store; port 0 means the first free
    one of `store_ports`, or any port if that is empty. In a job of one node, `meeting` is None and
    `settings` are those of its group; otherwise this node joins with them.
    `facts` should be equal on all nodes (`host/env_fingerprint`). Workers have `grace_s` between
    the request to stop and SIGKILL. A worker in an uninterruptible call for `stuck_after_s` has
    failed; 0 means no limit. `cpus` has one affinity mask per worker, or is empty. `run_directory`
    is for logs; `scratch` is the parent of a directory that is removed at the end; either may be
    empty. `worker_program` is for --preload.
    """

    command: Command
    local_world_size: int
    store_host: str
    store_port: int
    cpus: tuple[frozenset[int], ...]
    grace_s: float
    stuck_after_s: float
    run_directory: str
    scratch: str
    settings: GroupSettings
    meeting: "Meeting | None"
    facts: dict[str, str]
    worker_program: "WorkerProgram | None"
    store_ports: range = range(0)
