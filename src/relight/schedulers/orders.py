"""What a process of ours is told to do by the one that starts it: JSON, read by `core/fields`.

submit -> local_runner     Order
local_runner -> ssh_link   LinkOrder, in a variable
here -> ssh_replica        Run, Check, Remove
here -> whoever is asked for the job later, in its file ssh.json    Known
"""

import json

from relight.core import fields
from relight.schedulers.ssh_hosts import Host
from relight.typed import Any, NamedTuple


class Replica(NamedTuple):
    """A process of a job of this machine, and the files of its streams."""

    role: str
    replica: int
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str
    combined: str


class Order(NamedTuple):
    """A job of this machine. `detach`: it outlives the process that has sent it."""

    scheduler: str
    app_id: str
    name: str
    directory: str
    log_dir: str
    replicas: tuple[Replica, ...]
    detach: bool
    max_retries: int
    grace_s: float


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

    host: Host
    command: tuple[str, ...]
    workspace: str
    report_path: str
    order: Run


class Known(NamedTuple):
    """What is written down of a replica on another host, so that its copy can be removed there."""

    host: Host
    command: tuple[str, ...]
    order: Remove


def to_text(order: Any) -> bytes:
    """Return an order as a line of JSON."""
    return json.dumps(fields.to_json(order)).encode()
