"""The data behind an agent's replies: the job's identity and the agent's view of the job."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from relight.agent.agent_config import AgentConfig
from relight.agent.worker_group import WorkerGroup
from relight.base.values import MAX_NAME
from relight.core.group.messages import GenerationFormed, JobEnded, NodeReady
from relight.core.status.goodput import Account
from relight.core.status.preload_status import PreloadStatus
from relight.flags.spec import LaunchSpec
from relight.host.loop import Loop
from relight.output.journal import Journal

if TYPE_CHECKING:
    from relight.agent.status.numbers import Numbers
    from relight.core.status.snapshot import RankUse

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class View(NamedTuple):
    """The agent's view of the job. It includes the agent's state, its latest workers, the number of
    the last restart, its events, how the job ended, the progress of imports for restarts, and how
    the time was spent.
    """

    state: NodeReady | GenerationFormed | WorkerGroup | None
    workers: WorkerGroup | None
    restart: int
    journal: Journal
    end: JobEnded | None
    preload: PreloadStatus | None
    account: Account | None = None


class ServedJob:
    """One agent's job.

    Args:
        loop: the agent's loop.
        config: the command, the number of workers, and the rendezvous.
        began: the start time, in seconds since 1970.
        look: returns the agent's view of the job.
        numbers: the numbers that the agent's workers report.

    Attributes:
        end: the exit code and the reason for it, once the job has ended on this node.
        uses: the last known resource usage of the latest workers, by pid.
    """

    def __init__(
        self,
        loop: Loop,
        config: AgentConfig,
        began: float,
        look: Callable[[], View],
        numbers: "Numbers",
    ) -> None:
        self.loop, self.config, self.began, self.look = loop, config, began, look
        self.numbers = numbers
        self.end: tuple[int, str] | None = None
        self.uses: dict[int, RankUse] = {}
        self.id = format_job_id(config.spec)
        self.name = self.id.rpartition("-")[0]


def format_job_id(spec: LaunchSpec) -> str:
    """Return the id of this process's job, `NAME-PID`."""
    return f"{spec.name or _script_name(spec.script)}-{os.getpid()}"


def _script_name(script: str) -> str:
    """Return a script's name without its extension, or the last part of a module's name."""
    base = os.path.basename(script)
    if "/" in script or base.endswith(".py"):
        base = base.removesuffix(".py")
    else:
        base = base.rpartition(".")[2]
    plain = "".join(each if each in _LETTERS else "-" for each in base)[:MAX_NAME].strip("-._")
    return plain or "job"
