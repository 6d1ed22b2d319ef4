"""Controls a sandbox from the keyboard, if stdin and stderr are a terminal and the sandbox runs in
the foreground.
"""

import contextlib
import os
import termios
from collections.abc import Callable
from typing import Any

from relight.host.loop import Loop
from relight.sandbox.faults import Fault
from relight.sandbox.sandbox_job import SandboxJob
from relight.sandbox.sandbox_keys import KeyReader

_STDIN, _STDERR = 0, 2


class Keys:
    """Reads single key presses without echoing them, until `close` is called. Ctrl-C still
    interrupts the sandbox.

    Args:
        loop: the event loop.
        reader: converts key presses to faults.
        do: called to inject a fault.
        say: called to display a message.
    """

    def __init__(
        self,
        loop: Loop,
        reader: KeyReader,
        do: Callable[[Fault], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._do = do
        self._say = say
        self._before: list[Any] = termios.tcgetattr(_STDIN)
        now = termios.tcgetattr(_STDIN)
        now[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(_STDIN, termios.TCSANOW, now)
        loop.on_readable(_STDIN, self._on_key)

    @classmethod
    def open(
        cls,
        loop: Loop,
        hosts: int,
        job: SandboxJob,
        do: Callable[[Fault], None],
        say: Callable[[str], None],
    ) -> "Keys | None":
        """Return a Keyboard, or None if there is no terminal."""
        if not (os.isatty(_STDIN) and os.isatty(_STDERR)):
            return None
        try:
            if os.tcgetpgrp(_STDIN) != os.getpgrp():
                return None
            keys = cls(loop, KeyReader(hosts, job), do, say)
        except (OSError, termios.error):
            return None
        say(keys._reader.legend)
        return keys

    def close(self) -> None:
        """Restore the terminal settings."""
        self._loop.forget(_STDIN)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._before)

    def _on_key(self) -> None:
        try:
            text = os.read(_STDIN, 64).decode(errors="replace")
        except OSError:
            text = ""
        if not text:  # the terminal was closed
            self._loop.forget(_STDIN)
        for key in text:
            wanted = self._reader.press(key)
            if isinstance(wanted, Fault):
                self._do(wanted)
            elif wanted:
                self._say(wanted)
