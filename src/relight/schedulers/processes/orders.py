"""The orders that an `executor` reads from stdin as JSON (`base/fields`)."""

import json
from typing import Any, NamedTuple

from relight.base import fields


class ReplicaPlan(NamedTuple):
    """A process to run in a local job, and the files for its output streams."""

    role: str
    replica: int
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str
    combined: str


class Order(NamedTuple):
    """A local job to run. The `detach` field indicates whether the job outlives the process that
    submitted it.
    """

    scheduler: str
    app_id: str
    name: str
    directory: str
    log_dir: str
    replicas: tuple[ReplicaPlan, ...]
    detach: bool
    max_retries: int
    grace_s: float


def to_text(order: Any) -> bytes:
    """Serialize an order as a line of JSON."""
    return json.dumps(fields.to_json(order)).encode()
