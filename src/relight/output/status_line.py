"""Shows a status line as the last line on a terminal while the agent is waiting. The line is
removed before anything else is shown.
"""

import os

from relight.base.env import Environment
from relight.core.workers import colours, status_text
from relight.output.console import Consoles


class StatusLine:
    """A single line that is rewritten in place.

    Args:
        consoles: the agent's consoles. Its stderr is a terminal.
        env: the environment, which determines whether the line is coloured.
    """

    def __init__(self, consoles: Consoles, env: Environment) -> None:
        self._consoles = consoles
        self._coloured = colours.are_wanted(env.get)
        self._is_there = False
        # stdout may end up on the same terminal through a pipe, as in `relight run … | tee log`.
        for console in consoles:
            console.before_output = self.hide

    def show(self, what: str, waited_s: float) -> float:
        """Show what the agent is waiting for, unless a worker is in the middle of a line or this
        job is in the terminal's background. Return the number of seconds until the line changes.
        """
        fd = self._consoles.stderr.fd
        if all(console.is_at_line_start for console in self._consoles) and not _is_behind(fd):
            self._write(status_text.line(what, waited_s, _columns(fd)))
            self._is_there = True
        return status_text.until_next(waited_s)

    def hide(self) -> None:
        """Remove the line if it is visible."""
        if self._is_there:
            self._is_there = False
            self._write("")

    def _write(self, text: str) -> None:
        data = status_text.drawn(text, coloured=self._coloured)
        self._consoles.stderr.overwrite(data.encode(errors="replace"))


def _columns(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns
    except OSError:
        return 0


def _is_behind(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:  # the terminal belongs to another session
        return False
