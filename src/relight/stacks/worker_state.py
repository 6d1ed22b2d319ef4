"""Captures what workers are doing, either before they exit or are stopped, or on request.

This module is loaded if a job has hung, if a worker raises an exception or prints a traceback, or
if a user requests stacks.
"""

from collections.abc import Mapping
from contextlib import suppress

from relight.core.diagnosis import loaders, stack_text
from relight.core.diagnosis.printed_traceback import Program
from relight.core.diagnosis.stack_text import ProcessStack, ThreadStack
from relight.core.failure import WorkerState
from relight.host import system
from relight.stacks import elf, rank_processes
from relight.stacks.dump import take, take_all
from relight.stacks.process_memory import StackError
from relight.stacks.threads import process_state, tasks

_MAX_CHILDREN = 32
"""The maximum number of child processes to examine per worker. Each of them takes a few
milliseconds.
"""
_MAX_LOADERS = 8
"""The same for a worker that has just failed, and whose peers are waiting to be stopped."""

_LOADER = "pt_data_worker"
"""The name that torch gives its data loader processes (torch/utils/data/_utils/worker.py)."""


def doing(pids: Mapping[int, int], *, are_frozen: bool) -> dict[int, WorkerState]:
    """Return what each worker is doing, keyed by local rank. The call takes a few milliseconds per
    worker, and never blocks.

    Args:
        pids: the workers, by local rank. If a worker is a shell script, the Python process below it
            is examined.
        are_frozen: whether relight itself has stopped the workers. In that case, the result doesn't
            mention that they are stopped.
    """
    found = take_stacks(pids, are_frozen=are_frozen)
    return {rank: stack_text.doing(stack, _child(stack)) for rank, stack in found.items()}


def take_stacks(pids: Mapping[int, int], *, are_frozen: bool) -> dict[int, ProcessStack | str]:
    """Return each worker's stack, or the reason why it is missing, keyed by local rank. The
    arguments and the run time are the same as for `doing`.
    """
    found: dict[int, ProcessStack | str] = {}
    for rank, pid in pids.items():
        stack = _take_stack(rank_processes.find_python(pid))
        if isinstance(stack, str) and elf.has_left(pid):
            stack = ProcessStack(pid, "Z", ())
        if are_frozen and isinstance(stack, ProcessStack) and stack.state == "T":
            stack = stack._replace(state="S")
        found[rank] = stack
    return found


def _take_stack(pid: int) -> ProcessStack | str:
    """Return a process's stack, or the reason why the stack is missing. For a process in state D,
    whose memory may be locked, return only the system call.
    """
    stack = take_all({0: pid}, may_wait=False)[0]
    with suppress(StackError, IndexError):  # the process has exited
        if isinstance(stack, str) and process_state(pid) == "D":
            main = tasks(pid)[0]
            thread = ThreadStack(pid, main.name, main.waits_in, True, ())
            return ProcessStack(pid, "D", (thread,))
    return stack


def _child(stack: ProcessStack | str) -> ProcessStack | None:
    """Return the child process that a worker is waiting for, such as a data loader process."""
    if isinstance(stack, str) or not stack_text.waits_for_children(stack):
        return None
    return _child_at_work(stack.pid, _MAX_CHILDREN)


def stuck_loader(pid: int) -> str:
    """Return where a loader process of a worker is, as a sentence for the failure report, or an
    empty string. The call takes a few milliseconds per loader process, and never blocks.
    """
    child = _child_at_work(rank_processes.find_python(pid), _MAX_LOADERS)
    return stack_text.stuck_loader(child) if child is not None else ""


def lost_loader(pid: int) -> str:
    """Return how a worker's data loader process died, as evidence for the failure report, or an
    empty string. The call never blocks.
    """
    for child in system.child_pids(rank_processes.find_python(pid)):
        name, status = system.zombie(child)
        if name == _LOADER and status:
            return loaders.describe(child, status)
    return ""


def _child_at_work(pid: int, most: int) -> ProcessStack | None:
    children = [each for each in system.tree(pid) if elf.is_python(each)]
    for pid in children[:most]:
        child = _take_stack(pid)
        at_work = stack_text.child_at_work(child) if isinstance(child, ProcessStack) else None
        if at_work is not None:
            return at_work
    return None


def inspect_program(pid: int) -> Program:
    """Return the state of a worker's main thread. The call takes a few milliseconds, and never
    blocks.
    """
    try:
        stack = take(rank_processes.find_python(pid), may_wait=False)
    except StackError:
        return Program.LEFT if elf.has_left(pid) else Program.UNSEEN
    if stack.state in ("Z", "X"):
        return Program.LEFT
    return Program.RUNS if stack_text.runs_program(stack) else Program.ENDS
