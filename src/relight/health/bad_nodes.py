"""Records nodes whose hardware has failed, in a directory that all nodes and users share
(`--bad-nodes`), so that later jobs are submitted without them.

Each user has a small file of their own for each node, such as `gpu-17.1000.json`, because in a
directory with the sticky bit nobody can replace another user's file. Files are written atomically
and expire. Anyone may write to the directory, so a reader trusts only the metadata that the file
system keeps. Malformed and unrelated files are ignored, no record lasts longer than the configured
time after its file was written, and a user can't exclude more than `MAX_PER_USER` nodes. Root and
the directory's owner, who could remove all other records anyway, are not limited. A file counts for
its owner and not for the uid in its name, which is another one if an agent has run in a user
namespace, as with rootless containers, or if a file server squashes root.

A node is recorded only if there is proof of the failure (`HealthCheckFailure.is_proof`,
`Failure.gpu_broken`). Otherwise, a health check with a typo, which fails on every node, would leave
no usable nodes for anyone.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from relight.base import fields
from relight.base.env import Environment
from relight.base.values import BadNodesDirectory
from relight.flags.arguments import parse
from relight.flags.site import Site
from relight.flags.spec import FLAG_BY_NAME
from relight.host import files, job_origin

FLAG = FLAG_BY_NAME["bad-nodes"]
NODE_NAME = "RELIGHT_NODE_NAME"
"""The variable that contains the node's name in its cluster if that is not the host name, as in a
pod.
"""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_LARGEST = 16384
_MAX = 10_000
MAX_PER_USER = 16
_CLOCK_SKEW_S = 60
"""How far the clocks of a file server and of a node may differ."""
_REASON = 300


class BadNode(NamedTuple):
    """A record of a node with broken hardware, with the reason and the user and job that detected
    it.

    The `scheduler` field is empty for a job without one. `since` and `until` are in seconds since
    1970.
    """

    name: str
    reason: str
    scheduler: str
    user: str
    job: str
    since: float
    until: float

    def describe(self) -> str:
        """Return a line with the node's name, when the record expires, and the reason."""
        return f"{self.name} until {self.expiry_text()}: {self.reason}"

    def expiry_text(self) -> str:
        """Return the record's expiry time as text, in local time."""
        return time.strftime("%F %H:%M", time.localtime(self.until))


def directory(env: Environment, site: Site) -> BadNodesDirectory | None:
    """Return the directory that this machine's configuration specifies, or None if it specifies
    none.

    Raises:
        UsageError: if the value is invalid, or the site's configuration enforces a different value.
    """
    found: BadNodesDirectory | None = parse([], env, (FLAG,), site).values[FLAG.field]
    return found


def remember(place: BadNodesDirectory, reason: str, env: Environment) -> BadNode:
    """Record the node that this process is running on, and remove expired records.

    Raises:
        OSError: if the record can't be written.
    """
    now, origin = time.time(), job_origin.from_environment(env.variables)
    name = env.get(NODE_NAME) or env.get("SLURMD_NODENAME") or socket.gethostname()
    if not _NAME.fullmatch(name):
        raise OSError(None, f"{name!r} is not a node name")
    job = f"{origin.scheduler}/{origin.scheduler_job}".strip("/")
    found = BadNode(
        name, reason[:_REASON], origin.scheduler, origin.user, job, now, now + place.expiry_s
    )
    path = os.path.join(place.path, f"{name}.{os.getuid()}.json")
    files.replace(path, json.dumps(found._asdict()) + "\n", 0o644)
    for each in _read(place):
        if each.node.until <= now:
            with suppress(OSError):  # the record of another user
                os.unlink(each.path)
    return found


def current(place: BadNodesDirectory) -> tuple[list[BadNode], list[str]]:
    """Return the records that have not expired, sorted by node name, and a note for each user who
    has more records than count. If a node has several records, only the one that expires last is
    returned.

    Raises:
        OSError: if the directory can't be read.
    """
    unlimited = (0, os.stat(place.path).st_uid)
    found: dict[str, BadNode] = {}
    named: dict[int, dict[str, int]] = {}  # by owner: the nodes, latest first
    for file in sorted(_read(place), key=lambda each: each.written, reverse=True):
        latest = file.written + place.expiry_s + _CLOCK_SKEW_S
        each = file.node._replace(until=min(file.node.until, latest))
        if each.until <= time.time():
            continue
        names = named.setdefault(file.owner, {})
        number = names.setdefault(each.name, len(names))
        if number >= MAX_PER_USER and file.owner not in unlimited:
            continue
        if each.until > getattr(found.get(each.name), "until", 0.0):
            found[each.name] = each
    notes = [
        f"{place.path} contains {len(names)} bad nodes from uid {owner}; only the latest "
        f"{MAX_PER_USER} count"
        for owner, names in sorted(named.items())
        if owner not in unlimited and len(names) > MAX_PER_USER
    ]
    return [found[name] for name in sorted(found)], notes


def forget(place: BadNodesDirectory, names: Iterable[str]) -> list[str]:
    """Remove all records for these nodes, and return the names of the nodes that had a record.

    Raises:
        OSError: if a record can't be removed or the directory can't be read.
    """
    wanted, removed = set(names), dict[str, None]()
    for each in _read(place):
        if each.node.name in wanted:
            with suppress(FileNotFoundError):
                os.unlink(each.path)
            removed[each.node.name] = None
    return list(removed)


class _Record(NamedTuple):
    path: str
    owner: int
    written: float
    node: BadNode


def _read(place: BadNodesDirectory) -> list[_Record]:
    found = []
    for entry in sorted(os.listdir(place.path))[:_MAX]:
        path = os.path.join(place.path, entry)
        if not entry.endswith(".json"):
            continue
        try:
            with files.opened(path) as file:
                status = os.fstat(file.fileno())
                each = fields.record(BadNode, fields.decode(file.read(_LARGEST)))
        except (OSError, ValueError):
            continue
        if _NAME.fullmatch(each.name) and entry.startswith(f"{each.name}."):
            # Users can choose the modification time of their files, but not the change time.
            found.append(_Record(path, status.st_uid, status.st_ctime, each))
    return found
