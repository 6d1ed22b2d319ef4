"""The first worker of the first generation, which starts cold, is watched: what it imports."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Collection, Mapping

from relight.host import linux
from relight.host.loop import Callback, Loop, Timer
from relight.warm.warm_spawner import hook, variable

_LEARN_S = 20.0
_LOOK_S = 0.25
_QUIET_S = 5.0
_SIZE = 1 << 20


class WatchedWorker:
    """Learns from memory that the worker writes to (`worker/hook`) what it imports.

    Raises:
        OSError: there is no memory or descriptor for it.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fd = linux.anonymous_file("relight-modules")
        os.ftruncate(self._fd, _SIZE)
        # If it shrank, an access here would be a SIGBUS.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(self._fd, _SIZE)
        self._timer: Timer | None = None

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make a worker with `variables` report its imports."""
        return hook(f"learn:/proc/{os.getpid()}/fd/{self._fd}", variables)

    def when_quiet(self, is_starting: Callable[[], bool], done: Callback) -> None:
        """Call `done` once the worker has imported nothing new for a while.

        Args:
            is_starting: whether a worker that has imported nothing yet may still do so.
            done: called once.
        """

        def look(size: int) -> None:
            end = self._memory.find(b"\0")
            if end != size or (not end and is_starting()):
                self._timer = self._loop.call_after(_QUIET_S, lambda: look(end))
            else:
                done()

        self._timer = self._loop.call_after(_LEARN_S, lambda: look(0))

    def when_imports(self, modules: Collection[str], done: Callback) -> None:
        """Call `done` once the worker imports the first of these modules, or after a time limit."""
        end = self._loop.now() + _LEARN_S

        def look() -> None:
            if self._loop.now() < end and not set(self.imports()).intersection(modules):
                self._timer = self._loop.call_after(_LOOK_S, look)
            else:
                done()

        self._timer = self._loop.call_after(_LOOK_S, look)

    def imports(self) -> list[str]:
        """Return the names of the modules that the worker has imported, in their order."""
        lines = [line for line in self._lines() if line[:1] != b"="]
        return list(dict.fromkeys(line.decode(errors="replace") for line in lines))

    def stop(self) -> dict[str, str | None]:
        """Stop watching; return the variables that its script has set before imports, None for a
        removed one. If it has stopped before, return none.
        """
        timer, self._timer = self._timer, None
        if timer is None:
            return {}
        timer.cancel()
        return self.writes()

    def writes(self) -> dict[str, str | None]:
        """Return the variables that the script has set so far, None for a removed one."""
        found = {}
        for line in self._lines():
            if line[:1] == b"=":
                # The script may have overwritten it; an invalid escape is a warning, which the user
                # may have made an error.
                with contextlib.suppress(ValueError, Warning):
                    name, value = variable(line[1:])
                    found[name] = value
        return found

    def close(self) -> None:
        """Stop watching and release the memory."""
        self.stop()
        self._memory.close()
        os.close(self._fd)

    def _lines(self) -> list[bytes]:
        return self._memory[: self._memory.find(b"\0")].split(b"\n")[:-1]
