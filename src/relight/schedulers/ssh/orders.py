"""What the processes of an ssh job are told: JSON, read by `core/fields`.

processes.executor -> link    LinkOrder, in a variable
here -> replica               Run, Check, Remove
here -> whoever is asked for the job later, in its file ssh.json    Known
"""

from relight.schedulers.ssh.hosts import SshHost
from relight.typed import NamedTuple


class Run(NamedTuple):
    """Run a replica. `copy`: its working directory is in a copy of the workspace."""

    app_id: str
    role: str
    replica: int
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    copy: bool
    grace_s: float
    silence_s: float


class Check(NamedTuple):
    """Say what would go wrong: whether the directory and the commands are there."""

    cwd: str
    copy: bool
    commands: tuple[str, ...]
    path: str
    silence_s: float


class Remove(NamedTuple):
    """Forget the copy of a workspace."""

    app_id: str
    role: str
    replica: int
    copy: bool
    silence_s: float


class LinkOrder(NamedTuple):
    """Hold a replica on a host: the command of ssh, a directory to copy or nothing, where to write
    why it failed, and what it is told there.
    """

    host: SshHost
    command: tuple[str, ...]
    workspace: str
    report_path: str
    order: Run


class Known(NamedTuple):
    """What is written down of a replica on another host, so that its copy can be removed there."""

    host: SshHost
    command: tuple[str, ...]
    order: Remove
