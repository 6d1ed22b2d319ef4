"""Adds functions of C and C++ to what workers of a job that hangs do, where py-spy is installed."""

from collections.abc import Callable, Mapping

from relight.core.exits import Doing
from relight.core.stacks import native_lines
from relight.host import background
from relight.host.loop import Loop
from relight.host.stacks import spy, workers

LIMIT_S = 8.0
"""How long it may take: with torch, py-spy reads some seconds."""
_MOST = 3
"""At most so many workers of a node are looked at, each in another place."""


def add(
    loop: Loop, pids: Mapping[int, int], doing: dict[int, Doing], done: Callable[[], None]
) -> bool:
    """Look at one worker of each place, and add to `doing` what it does; then call `done`, after
    8 s at the latest. What can't be found out is left out.

    Args:
        loop: is served meanwhile.
        pids: the workers that run, by local rank.
        doing: what they do.
        done: called once, or more often.

    Returns:
        Whether py-spy is installed; if not, nothing follows.
    """
    if not spy.is_installed():
        return False
    first_at = {doing[rank].place: rank for rank in sorted(pids, reverse=True) if rank in doing}
    chosen = sorted(first_at.values())[:_MOST]

    def look() -> dict[int, tuple[str, ...]]:
        found = {}
        for rank in chosen:
            pid = workers.python_of(pids[rank])
            found[rank] = spy.native(pid, LIMIT_S / _MOST).get(pid, ())
        return found

    def take(found: dict[int, tuple[str, ...]] | Exception) -> None:
        for rank, functions in () if isinstance(found, Exception) else found.items():
            stack = (*doing[rank].stack, *native_lines(functions))
            doing[rank] = doing[rank]._replace(stack=stack)
        done()

    background.call(loop, look, take)
    loop.call_after(LIMIT_S, done)
    return True
