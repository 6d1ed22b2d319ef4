"""Reads the Python stacks of processes. `take` reads one process, and `take_all` reads all
ranks.
"""

import os
import time
from collections.abc import Iterable, Mapping

from relight.core.diagnosis.stack_text import Handled, ProcessStack, ThreadStack
from relight.stacks import elf, exceptions, layouts, py_spy
from relight.stacks.frames import Thread, Walk
from relight.stacks.process_memory import Memory, StackError, open_memory
from relight.stacks.threads import Task, process_state, tasks

_ATTEMPTS = 5
_PAUSE_S = 0.003


def take(pid: int, *, may_wait: bool = True) -> ProcessStack:
    """Return the stack of each thread in a Python process, main thread first.

    The process is not stopped, and doesn't need to cooperate. If a thread is running, its stack may
    combine frames from two consecutive moments. For a zombie, `threads` is empty.

    Args:
        pid: a process running CPython 3.11 to 3.14 on 64-bit Linux. Other versions are
            supported if py-spy is on PATH.
        may_wait: whether to run py-spy, and to read processes in state D, whose memory may be
            locked.

    Raises:
        StackError: if the process has exited, is not a Python process, or may not be read. No other
            exception is raised.
    """
    if not 0 < pid < 1 << 31:
        raise StackError(f"{pid} is not the pid of a process", hint="list processes with ps -ef")
    state = _persistent_state(pid)
    is_finalizing = False
    if state in ("Z", "X"):
        return ProcessStack(pid, state, ())
    if state == "D" and not may_wait:
        raise StackError(f"process {pid} is in an uninterruptible system call (state D)")
    shown = tasks(pid)
    try:
        main_id = shown[0].inner_id if shown else pid
        found, handled, is_finalizing = _walk(pid, main_id)
        threads = _merge(found, handled, shown, pid)
    except StackError as error:
        if process_state(pid) not in ("Z", "X"):
            if not may_wait:
                raise
            threads = _by_spy(pid, shown, error)
        else:
            threads = ()
    return ProcessStack(pid, _persistent_state(pid), threads, is_finalizing)


def take_all(pids: Mapping[int, int], *, may_wait: bool = True) -> dict[int, ProcessStack | str]:
    """Return the stacks of several processes, keyed by rank. For a process that can't be read,
    return the reason and the remedy in one line instead. This function never raises an exception.

    Reading takes a few milliseconds per process, or up to 20 s with py-spy, and blocks while a
    process in state D holds its memory lock. Callers that must not block should call this function
    in a thread.

    Args:
        pids: the processes, by rank.
        may_wait: as for `take`.
    """
    found: dict[int, ProcessStack | str] = {}
    for rank, pid in pids.items():
        try:
            found[rank] = take(pid, may_wait=may_wait)
        except StackError as error:
            found[rank] = f"{error.message} ({error.hint})" if error.hint else error.message
    return found


def _persistent_state(pid: int) -> str:
    """Return the state of a process. State D is returned only if it persists, because every process
    is briefly in state D when it reads a page from disk.
    """
    for _ in range(_ATTEMPTS):
        state = process_state(pid)
        if state != "D":
            break
        time.sleep(_PAUSE_S)
    return state


def _walk(pid: int, main_id: int) -> tuple[list[Thread], Handled | None, bool]:
    """Return a process's threads, the exception that the main thread is handling, and whether
    Python is shutting down.

    The thread list is read again if a concurrent change truncated it, in which case it lacks the
    main thread, the last entry.
    """
    symbols = elf.addresses(pid)
    fd = open_memory(pid)
    found: list[Thread] | None = None
    handled: Handled | None = None
    is_finalizing = False
    try:
        memory = Memory(lambda size, address: os.pread(fd, size, address), pid)
        layout = layouts.find_layout(memory, symbols)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            try:
                walk = Walk(memory, layout, symbols)
                found = walk.threads(symbols[elf.RUNTIME])
                is_finalizing = memory.word(symbols[elf.RUNTIME] + layout.finalizing) != 0
            except StackError as error:
                if not error.unreadable:
                    raise
                continue
            if any(thread.native_id == main_id and thread.frames for thread in found):
                handled = exceptions.handled(walk, walk.addresses[main_id])
                break
    finally:
        os.close(fd)
    if found is None:
        raise memory.broken()
    return found, handled, is_finalizing


def _merge(
    found: list[Thread], handled: Handled | None, shown: list[Task], pid: int
) -> tuple[ThreadStack, ...]:
    """Combine the threads that CPython knows about with the system's data on these threads."""
    by_id = {task.inner_id: task for task in shown}
    stacks: dict[int, ThreadStack] = {}
    unknown = []
    for thread in found:
        task = by_id.get(thread.native_id)
        if task is None and len(found) == 1 and shown:
            task = shown[0]  # after a fork, it may still have its parent's id
        if task is None:
            unknown += [ThreadStack(0, "", "", False, thread.frames)] if thread.frames else []
        # In Python 3.11, a thread that is about to start still has the id of the thread that starts
        # it.
        elif task.native_id not in stacks or thread.frames:
            is_main = task.native_id == pid
            stacks[task.native_id] = ThreadStack(
                task.native_id,
                task.name,
                task.waits_in,
                is_main,
                thread.frames,
                handled=handled if is_main else None,
            )
    return _main_first([*stacks.values(), *unknown])


def _main_first(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    return tuple(sorted(threads, key=lambda thread: (not thread.is_main, thread.native_id)))


def _by_spy(pid: int, shown: list[Task], error: StackError) -> tuple[ThreadStack, ...]:
    found = py_spy.dump(pid, shown) if error.unreadable else None
    if found is None:
        raise error
    return _main_first(found)
