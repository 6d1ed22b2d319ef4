"""Repeatedly samples the main thread of a process. Each sample takes about a tenth of a
millisecond.

The address and version of the interpreter are read only once. If the process executes a different
program, the next sample fails, and the caller needs a new `MainThread`.
"""

import os

from relight.core.diagnosis.stack_text import Frame
from relight.stacks import elf, layouts
from relight.stacks.frames import Walk
from relight.stacks.process_memory import Memory, open_memory
from relight.stacks.threads import process_state, tasks


class MainThread:
    """The main thread of a Python process.

    Args:
        pid: the process, as in `take`.

    Raises:
        StackError: if the process has exited, is not a Python process, or may not be read.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._native_id = tasks(pid)[0].inner_id
        self._symbols = elf.addresses(pid)
        self._fd = open_memory(pid)
        try:
            self._layout = layouts.find_layout(self._memory(), self._symbols)
        except BaseException:
            self.close()
            raise

    def look(self) -> tuple[str, tuple[Frame, ...]]:
        """Return the thread's state, as /proc shows it, and the thread's frames, innermost first.

        Raises:
            StackError: if the process has exited, or if its memory doesn't have the expected
                content.
        """
        state = process_state(self._pid)
        if state == "D":  # reading its memory might block
            return state, ()
        walk = Walk(self._memory(), self._layout, self._symbols)
        runtime = self._symbols[elf.RUNTIME]
        # After a fork, the thread may still have its parent's id. The main thread is the oldest,
        # and therefore the last one.
        found = walk.threads(runtime, only=self._native_id) or walk.threads(runtime)
        return state, found[-1].frames if found else ()

    def close(self) -> None:
        """Close the descriptor for the process's memory."""
        os.close(self._fd)

    def _memory(self) -> Memory:
        return Memory(lambda size, address: os.pread(self._fd, size, address), self._pid)
