"""Records nodes whose hardware has failed, in a directory that all nodes and users share
(`--bad-nodes`), so that later jobs are submitted without them.

Each user has a small file of their own for each node, such as `gpu-17.1000.json`, because in a
directory with the sticky bit nobody can replace another user's file. Files are written atomically
and expire. Malformed and unrelated files are ignored, because anyone may write to the directory.

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
    for path, each in _read(place):
        if each.until <= now:
            with suppress(OSError):  # the record of another user
                os.unlink(path)
    return found


def current(place: BadNodesDirectory) -> list[BadNode]:
    """Return the records that have not expired, sorted by node name. If a node has several records,
    only the one that expires last is returned.

    Raises:
        OSError: if the directory can't be read.
    """
    found: dict[str, BadNode] = {}
    for _, each in _read(place):
        if each.until > time.time() and each.until > getattr(found.get(each.name), "until", 0.0):
            found[each.name] = each
    return [found[name] for name in sorted(found)]


def forget(place: BadNodesDirectory, names: Iterable[str]) -> list[str]:
    """Remove all records for these nodes, and return the names of the nodes that had a record.

    Raises:
        OSError: if a record can't be removed or the directory can't be read.
    """
    wanted, removed = set(names), dict[str, None]()
    for path, each in _read(place):
        if each.name in wanted:
            with suppress(FileNotFoundError):
                os.unlink(path)
            removed[each.name] = None
    return list(removed)


def _read(place: BadNodesDirectory) -> list[tuple[str, BadNode]]:
    found = []
    for entry in sorted(os.listdir(place.path))[:_MAX]:
        path = os.path.join(place.path, entry)
        if not entry.endswith(".json"):
            continue
        try:
            with files.opened(path) as file:
                each = fields.record(BadNode, fields.decode(file.read(_LARGEST)))
        except (OSError, ValueError):
            continue
        if _NAME.fullmatch(each.name) and entry.startswith(f"{each.name}."):
            found.append((path, each))
    return found
