"""What workers do before they are stopped: loaded only when a job hangs, or blames a peer."""

from collections.abc import Mapping

from relight.core import stacks
from relight.core.exits import Doing
from relight.core.stacks import ProcessStack
from relight.host.stacks import workers
from relight.host.stacks.memory import StackError
from relight.host.stacks.take import take, take_all


def doing(pids: Mapping[int, int], *, are_frozen: bool) -> dict[int, Doing]:
    """Return what workers do, by local rank. It takes some milliseconds for each, and never waits.

    Args:
        pids: by local rank; of a shell script, the Python process below it is looked at.
        are_frozen: whether relight itself has stopped them; then that is not told.
    """
    found = take_all({rank: workers.python_of(pid) for rank, pid in pids.items()}, may_wait=False)
    return {
        rank: stacks.doing(
            stack._replace(state="S")
            if are_frozen and isinstance(stack, ProcessStack) and stack.state == "T"
            else stack
        )
        for rank, stack in found.items()
    }


def is_ending(pid: int) -> bool | None:
    """Return whether a worker's main thread no longer runs its program: Python prints the exception
    that ends it, or shuts down. None if that can't be seen. It takes some milliseconds.
    """
    try:
        stack = take(workers.python_of(pid), may_wait=False)
    except StackError:
        return None
    main = next((thread for thread in stack.threads if thread.is_main and thread.frames), None)
    return main is None or main.frames[-1].function != "<module>"
