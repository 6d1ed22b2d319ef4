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
from relight.sandbox.sandbox_keys import KeyReader

_STDIN, _STDERR = 0, 2


def has_terminal() -> bool:
    """Return whether stdin and stderr are a terminal and this process runs in its foreground."""
    try:
        return os.isatty(_STDIN) and os.isatty(_STDERR) and os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:  # it is not this process's controlling terminal
        return False


class Keys:
    """Reads single key presses without echoing them, until `close` is called. Ctrl-C still
    interrupts the sandbox. It requires a terminal (`has_terminal`).

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
        say(reader.legend)

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
