"""Watches the imports of a generation's first worker."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Collection, Mapping

from relight.core.workers import import_ahead
from relight.core.workers.import_ahead import WorkerImports
from relight.host import linux
from relight.host.loop import Callback, Loop, Timer
from relight.warm.worker_program import hook, variable

_POLL_S = 0.25
_SLOWEST_POLL_S = 5.0
_SIZE = 1 << 20
_OPTIMIZER, _STEP = b"!optimizer", b"!step"
"""Lines that report that torch's optimizers have been imported, and that one of them has taken a
step.
"""


class WatchedWorker:
    """Reads the imports that a worker writes to shared memory (`worker/hook`).

    Raises:
        OSError: if memory or descriptors are exhausted.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fd = linux.anonymous_file("relight-modules")
        os.ftruncate(self._fd, _SIZE)
        # If the file were truncated, accessing the memory here would cause a SIGBUS.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(self._fd, _SIZE)
        self._timer: Timer | None = None
        self._earlier: dict[bytes, None] = {}
        self._lines: dict[bytes, None] = {}
        self._generations = 0
        self._size = 0
        self._first_start_s = 0.0
        self._made = self._began = self._changed = loop.now()

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that make a worker whose environment is `variables`
        report its imports.
        """
        return hook(f"learn:/proc/{os.getpid()}/fd/{self._fd}", variables)

    def begin(self) -> None:
        """Set up shared memory for the reports of a new generation's first worker."""
        self._read()
        self._earlier = self._lines
        self._memory[: self._size] = bytes(self._size)
        self._generations += 1
        self._size = 0
        self._began = self._changed = self._loop.now()

    def poll(self, look: Callback) -> None:
        """Call `look` repeatedly. The calls are frequent at first, and less frequent while nothing
        new is imported.
        """

        def run() -> None:
            self._timer = self._loop.call_after(
                min(_SLOWEST_POLL_S, max(_POLL_S, self.seen().quiet_s / 10)), run
            )
            look()

        if self._timer is None:
            run()

    def when_imports(self, modules: Collection[str], done: Callback) -> None:
        """Call `done` as soon as the worker imports any of these modules, or after a time limit."""
        end = self._loop.now() + import_ahead.LEARN_S

        def look() -> None:
            if self._loop.now() < end and not set(self.imports()).intersection(modules):
                self._timer = self._loop.call_after(_POLL_S, look)
            else:
                self._timer = None
                done()

        self._timer = self._loop.call_after(_POLL_S, look)

    def seen(self) -> WorkerImports:
        """Return the progress of the worker's imports and of its first step."""
        now = self._loop.now()
        self._read()
        return WorkerImports(
            modules=len(self._lines),
            age_s=now - self._began,
            quiet_s=now - self._changed,
            has_optimizer=_OPTIMIZER in self._lines,
            has_stepped=_STEP in self._lines,
            is_restarted=self._generations > 1,
        )

    def first_start_s(self) -> float:
        """Return how long the first worker took to reach its first step. If it has not taken a step
        yet, return how long it has been running.
        """
        self._read()
        return self._first_start_s if _STEP in self._lines else self._loop.now() - self._made

    def imports(self) -> list[str]:
        """Return the names of the modules that workers have imported, in import order."""
        self._read()
        names = (line for line in self._lines if line[:1] not in (b"=", b"!"))
        return [name.decode(errors="replace") for name in names]

    def writes(self) -> dict[str, str | None]:
        """Return the environment variables that the script has set, or removed (None), so far."""
        found = {}
        self._read()
        for line in self._lines:
            if line[:1] == b"=":
                # The script may have overwritten the memory. An invalid escape sequence is only a
                # warning, but the user may have turned warnings into errors.
                with contextlib.suppress(ValueError, Warning):
                    name, value = variable(line[1:])
                    found[name] = value
        return found

    def stop(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop watching the worker, and release the shared memory."""
        self.stop()
        self._memory.close()
        os.close(self._fd)

    def _read(self) -> None:
        """Read the lines that are new. A line that two workers report counts only once."""
        size = self._memory.find(b"\0") % (_SIZE + 1)  # all memory without a zero byte
        if size != self._size:
            self._size, self._changed = size, self._loop.now()
            lines = self._memory[:size].split(b"\n")[:-1]
            had_step = _STEP in self._lines
            self._lines = self._earlier | dict.fromkeys(lines)
            if _STEP in self._lines and not had_step:
                self._first_start_s = self._changed - self._began
