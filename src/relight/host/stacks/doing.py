"""What workers do before they are stopped or end, or when somebody asks. Loaded when a job hangs,
when a worker blames a peer, when one prints a traceback on a terminal, or when somebody asks.
"""

from collections.abc import Mapping

from relight.core import stacks
from relight.core.exits import Doing
from relight.core.stacks import ProcessStack
from relight.host.stacks import elf, workers
from relight.host.stacks.memory import StackError
from relight.host.stacks.take import take, take_all


def doing(pids: Mapping[int, int], *, are_frozen: bool) -> dict[int, Doing]:
    """Return what workers do, by local rank. It takes some milliseconds for each, and never waits.

    Args:
        pids: by local rank; of a shell script, the Python process below it is looked at.
        are_frozen: whether relight itself has stopped them; then that is not told.
    """
    found = stacks_of(pids, are_frozen=are_frozen)
    return {rank: stacks.doing(stack) for rank, stack in found.items()}


def stacks_of(pids: Mapping[int, int], *, are_frozen: bool) -> dict[int, ProcessStack | str]:
    """Return the stacks of workers, by local rank, or why there are none; arguments and time are
    those of `doing`.
    """
    found = take_all({rank: workers.python_of(pid) for rank, pid in pids.items()}, may_wait=False)
    return {
        rank: stack._replace(state="S")
        if are_frozen and isinstance(stack, ProcessStack) and stack.state == "T"
        else stack
        for rank, stack in found.items()
    }


def is_shutting_down(pid: int) -> bool | None:
    """Return whether a worker no longer runs its program: Python prints the exception that ends it,
    or shuts down. None if that can't be seen. It takes some milliseconds, and never waits.
    """
    try:
        return not stacks.runs_program(take(workers.python_of(pid), may_wait=False))
    except StackError:
        return True if elf.has_left(pid) else None
