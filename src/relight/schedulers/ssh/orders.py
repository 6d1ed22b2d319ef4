"""The orders to the processes of an ssh job: JSON, read by `base/fields`.

processes.executor -> link    LinkOrder, in a variable
here -> replica               Run, Check, Remove
here -> later commands on the job, in its file ssh.json    RemoteReplica
"""

from typing import NamedTuple

from relight.schedulers.ssh.hosts import SshHost


class RunReplica(NamedTuple):
    """Run a replica. `copy`: whether its working directory is in a copy of the workspace."""

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
    """Check whether the directory and the commands exist."""

    cwd: str
    copy: bool
    commands: tuple[str, ...]
    path: str
    silence_s: float


class Remove(NamedTuple):
    """Remove the copy of a workspace."""

    app_id: str
    role: str
    replica: int
    copy: bool
    silence_s: float


class LinkOrder(NamedTuple):
    """Run a replica on a host: the ssh command, a workspace to copy or nothing, the path for its
    error file, and the order for the host.
    """

    host: SshHost
    command: tuple[str, ...]
    workspace: str
    report_path: str
    order: RunReplica


class RemoteReplica(NamedTuple):
    """A replica on another host, as recorded here, and the order that removes its workspace."""

    host: SshHost
    command: tuple[str, ...]
    order: Remove
