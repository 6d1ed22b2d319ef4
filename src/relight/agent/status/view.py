"""The data behind an agent's replies: the job's identity, its state and its workers."""

import os
import time
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.agent.node import Node
from relight.agent.status.numbers import Numbers
from relight.base.values import MAX_NAME
from relight.core.status.goodput import Account, Ledger
from relight.core.status.snapshot import RankUse
from relight.flags.spec import LaunchSpec
from relight.host.loop import Loop
from relight.output.journal import Journal

if TYPE_CHECKING:
    from relight.warm.background_preload import BackgroundPreload
    from relight.warm.preloading import Preload

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class ServedJob:
    """One agent's job.

    Args:
        loop: the agent's loop.
        config: the command, the number of workers, and the rendezvous.
        journal: the agent's events, and its messages to the user.
        node: the agent's state and its workers.
        preload: the process that imports modules in advance, or None without --preload.

    Attributes:
        began: the start time, in seconds since 1970.
        ledger: how the job spends its time.
        numbers: the numbers that the workers report, once the job is visible.
        end: the exit code and the reason for it, once the job has ended on this node.
        uses: the last known resource usage of the latest workers, by pid.
    """

    def __init__(
        self,
        loop: Loop,
        config: AgentConfig,
        journal: Journal,
        node: Node,
        preload: "Preload | BackgroundPreload | None",
    ) -> None:
        self.loop, self.config, self.journal, self.node = loop, config, journal, node
        self.preload = preload
        began = journal.events.began
        self.began = time.time() - (loop.now() - began)
        self.ledger = Ledger(began, knows_checkpoints=bool(config.spec.checkpoints))
        self.numbers: Numbers | None = None
        self.end: tuple[int, str] | None = None
        self.uses: dict[int, RankUse] = {}
        self.id = format_job_id(config.spec)
        self.name = self.id.rpartition("-")[0]

    @property
    def has_rank_0(self) -> bool:
        """Whether the latest workers on this node include rank 0."""
        workers = self.node.workers
        return workers is not None and workers.formed.place.group_rank == 0

    def account(self) -> Account:
        """Return how the job has spent its time so far."""
        workers = self.node.workers
        span = workers.span() if workers is not None else None
        return self.ledger.account(self.loop.now(), span[0] if span is not None else None)


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
