"""Takes the Python stack of a running process from outside: it need not cooperate, and may be
stopped, deadlocked or blocked in a system call.

    memory.py    reads the memory of a process
    elf.py       finds CPython's variables in it
    layouts.py   where each version of CPython has what
    frames.py    reads the frames
    pyspy.py     asks py-spy where these can't
"""

from collections.abc import Mapping

from relight.core.stacks import Frame, ProcessStack, Thread
from relight.host.stacks import elf, frames, layouts
from relight.host.stacks.memory import Memory, StackError

_TRIES = 3
"""A process that runs may change its stack while it is read."""


def take(pid: int, *, with_pyspy: bool = False) -> ProcessStack:
    """Return the stack of a process.

    Args:
        pid: the process.
        with_pyspy: whether py-spy is asked where this can't read it; that may take 10 s.

    Raises:
        StackError: it is gone, may not be read, or is no Python that is supported.
    """
    state = _state(pid)
    if state in ("Z", "X", ""):
        raise StackError(f"pid {pid} has ended")
    try:
        found = _read(pid)
    except StackError:
        from relight.host.stacks import pyspy

        by_pyspy = pyspy.dump(pid) if with_pyspy else None
        if by_pyspy is None:
            raise
        found = by_pyspy
    threads = [
        Thread(native_id, native_id == pid, _line(f"/proc/{pid}/task/{native_id}/comm"), of_thread)
        for native_id, of_thread in found.items()
    ]
    threads.sort(key=lambda thread: (not thread.is_main, thread.native_id))
    wchan = _line(f"/proc/{pid}/wchan")
    return ProcessStack(pid, state, "" if wchan == "0" else wchan, tuple(threads))


def take_all(pids: Mapping[int, int], *, with_pyspy: bool = False) -> dict[int, ProcessStack | str]:
    """Return the stacks of several processes, or why one could not be taken.

    Args:
        pids: the processes, by rank.
        with_pyspy: see `take`.
    """
    found: dict[int, ProcessStack | str] = {}
    for rank, pid in pids.items():
        try:
            found[rank] = take(pid, with_pyspy=with_pyspy)
        except StackError as error:
            found[rank] = str(error)
    return found


def _read(pid: int) -> dict[int, tuple[Frame, ...]]:
    addresses = elf.find(pid)
    memory = Memory(pid)
    try:
        for left in reversed(range(_TRIES)):
            try:
                layout, interpreter = layouts.read(memory, addresses.runtime, addresses.version)
                return frames.threads(memory, layout, interpreter)
            except StackError:
                if not left:
                    raise
    finally:
        memory.close()
    return {}


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def _line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(100).strip()
    except OSError:
        return ""
