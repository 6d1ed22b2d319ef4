"""What workers do before they are stopped or end, or when somebody asks. Loaded when a job hangs,
when a worker blames a peer, when one prints a traceback, or when somebody asks.
"""

from collections.abc import Mapping

from relight.core import stacks
from relight.core.exits import Doing
from relight.core.printed_traceback import Program
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


def program_of(pid: int) -> Program:
    """Return what the main thread of a worker does. It takes some milliseconds, and never waits."""
    try:
        stack = take(workers.python_of(pid), may_wait=False)
    except StackError:
        return Program.LEFT if elf.has_left(pid) else Program.UNSEEN
    if stack.state in ("Z", "X"):
        return Program.LEFT
    return Program.RUNS if stacks.runs_program(stack) else Program.ENDS
