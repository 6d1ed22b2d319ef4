"""Records this node as bad (`--bad-nodes`). This module is loaded only after a hardware failure."""

from relight.base.env import Environment
from relight.base.values import BadNodesDirectory
from relight.health import bad_nodes
from relight.health.bad_nodes import BadNode
from relight.host import background
from relight.host.loop import Loop
from relight.output.journal import Journal

_LIMIT_S = 3.0
"""How long the agent waits for a shared file system."""


def remember(
    loop: Loop, journal: Journal, place: BadNodesDirectory, why: str, env: Environment
) -> None:
    """Record this node as bad for later jobs, and report either success or the error. The agent's
    loop keeps running while the record is being written.
    """
    results: list[BadNode | Exception] = []
    background.call(loop, lambda: bad_nodes.remember(place, why, env), results.append)
    loop.run_until(lambda: bool(results), _LIMIT_S)
    found = results[0] if results else TimeoutError(None, "the file system is not responding")
    if isinstance(found, BadNode):
        journal.say(
            f"later jobs will not use {found.describe()}; "
            f"to undo this: relight nodes forget {found.name}"
        )
    else:
        reason = (isinstance(found, OSError) and found.strerror) or str(found)
        journal.say(f"can't record this node as bad in {place.path}: {reason}")
