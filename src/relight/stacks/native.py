"""Looks closer at workers of a job that hangs: at the memory of those in state D, which may be
locked, and at functions of C and C++, where py-spy is installed.
"""

from collections.abc import Callable, Mapping

from relight.core.diagnosis import stack_text
from relight.core.diagnosis.stack_text import native_lines
from relight.core.failure import WorkerState
from relight.host import background
from relight.host.loop import Loop
from relight.stacks import py_spy, rank_processes
from relight.stacks.dump import take
from relight.stacks.process_memory import StackError

LIMIT_S = 8.0
"""How long it may take: with torch, py-spy reads some seconds."""
_MOST = 3
"""At most so many workers of a node are looked at, each in another place."""


def add(
    loop: Loop, pids: Mapping[int, int], doing: dict[int, WorkerState], done: Callable[[], None]
) -> bool:
    """Look at one worker of each place, and add to `doing` what it does; then call `done`, after
    8 s at the latest. What can't be found out is left out.

    Args:
        loop: is served meanwhile.
        pids: the workers that run, by local rank.
        doing: what they do.
        done: called once, or more often.

    Returns:
        Whether there is anything to look at; if not, nothing follows.
    """
    stuck = [rank for rank in pids if rank in doing and stack_text.is_locked(doing[rank])]
    has_spy = py_spy.is_installed()
    if not (has_spy or stuck):
        return False
    first_at = {doing[rank].place: rank for rank in sorted(pids, reverse=True) if rank in doing}
    chosen = sorted(first_at.values())[:_MOST]

    def look() -> dict[int, WorkerState]:
        found = {}
        for rank in stuck:
            found[rank] = _read(rank_processes.python_of(pids[rank]), doing[rank])
        for rank in chosen if has_spy else ():
            pid = rank_processes.python_of(pids[rank])
            functions = py_spy.native(pid, LIMIT_S / _MOST).get(pid, ())
            seen = found.get(rank, doing[rank])
            found[rank] = seen._replace(stack=(*seen.stack, *native_lines(functions)))
        return found

    def note(found: dict[int, WorkerState] | Exception) -> None:
        if not isinstance(found, Exception):
            doing.update(found)
        done()

    background.call(loop, look, note)
    loop.call_after(LIMIT_S, done)
    return True


def _read(pid: int, seen: WorkerState) -> WorkerState:
    """Return what a worker in state D does; the read may wait as long as it is there."""
    try:
        return stack_text.doing(take(pid))
    except StackError:
        return seen
