"""Examines the workers in a hung job more closely.

This module reads workers in state D, whose memory may be locked. If py-spy is installed, it also
lists the C and C++ functions that workers are executing.
"""

from collections.abc import Callable, Mapping

from relight.core.diagnosis import stack_text
from relight.core.diagnosis.stack_text import with_native
from relight.core.failure import WorkerState
from relight.host import background
from relight.host.loop import Loop
from relight.stacks import py_spy, rank_processes
from relight.stacks.dump import take
from relight.stacks.process_memory import StackError

LIMIT_S = 8.0
"""Time limit. py-spy takes several seconds if torch is loaded."""
_MAX = 3
"""The maximum number of workers to examine on each node. Each of them is at a different location in
the code.
"""


def add(
    loop: Loop, pids: Mapping[int, int], doing: dict[int, WorkerState], done: Callable[[], None]
) -> bool:
    """Examine one worker per code location, and add the results to `doing`. Call `done` within 8 s,
    even if some results are missing.

    Args:
        loop: the agent's event loop, which keeps running.
        pids: the running workers, by local rank.
        doing: the states of the workers.
        done: called at least once.

    Returns:
        Whether there is anything to examine. If there isn't, `done` is never called.
    """
    stuck = [rank for rank in pids if rank in doing and stack_text.is_locked(doing[rank])]
    has_spy = py_spy.is_installed()
    if not (has_spy or stuck):
        return False
    first_at = {doing[rank].place: rank for rank in sorted(pids, reverse=True) if rank in doing}
    chosen = sorted(first_at.values())[:_MAX]

    def look() -> dict[int, WorkerState]:
        found = {}
        for rank in stuck:
            found[rank] = _read(rank_processes.find_python(pids[rank]), doing[rank])
        for rank in chosen if has_spy else ():
            pid = rank_processes.find_python(pids[rank])
            functions = py_spy.native(pid, LIMIT_S / _MAX).get(pid, ())
            seen = found.get(rank, doing[rank])
            found[rank] = seen._replace(stack=with_native(seen.stack, functions))
        return found

    def note(found: dict[int, WorkerState] | Exception) -> None:
        if not isinstance(found, Exception):
            doing.update(found)
        done()

    background.call(loop, look, note)
    loop.call_after(LIMIT_S, done)
    return True


def _read(pid: int, seen: WorkerState) -> WorkerState:
    """Read a worker in state D. Reading may block until the worker leaves that state."""
    try:
        return stack_text.doing(take(pid))
    except StackError:
        return seen
