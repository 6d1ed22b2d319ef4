"""The orders for the processes of an ssh job, as JSON that `base/fields` can parse.

processes.executor -> link    LinkOrder, in an environment variable
here -> replica               RunReplica, Check, Remove
here -> later commands        RemoteReplica, in the job's file ssh.json
"""

from typing import NamedTuple

from relight.schedulers.ssh.hosts import SshHost


class RunReplica(NamedTuple):
    """Run a replica. The `copy` field indicates whether the working directory is in a copy of the
    workspace.
    """

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
    """Check whether the working directory and the commands exist."""

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
    """Run a replica on a host. This order contains the ssh command, the path of the error file, the
    order to send to the host, and optionally a workspace to copy.
    """

    host: SshHost
    command: tuple[str, ...]
    workspace: str
    report_path: str
    order: RunReplica


class RemoteReplica(NamedTuple):
    """A local record of a replica on another host, which contains the order that removes its
    workspace.
    """

    host: SshHost
    command: tuple[str, ...]
    order: Remove
