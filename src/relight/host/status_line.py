"""The last line of a terminal, while the agent waits: gone before anything else is shown."""

import os

from relight.core import colours, status_line
from relight.env import Environment
from relight.host.console import Consoles


class StatusLine:
    """One line, rewritten in place.

    Args:
        consoles: of the agent; its stderr is a terminal.
        env: says whether the user wants colours.
    """

    def __init__(self, consoles: Consoles, env: Environment) -> None:
        self._consoles = consoles
        self._coloured = colours.are_wanted(env.get)
        self._is_there = False
        # stdout may lead to the same terminal through a pipe, as in `relight run … | tee log`.
        for console in consoles:
            console.before_output = self.hide

    def show(self, what: str, waited_s: float) -> float:
        """Show what the agent waits for, unless a worker is in the middle of a line; return in how
        many seconds it changes.
        """
        if all(console.is_at_line_start for console in self._consoles):
            try:
                columns = os.get_terminal_size(self._consoles.stderr.fd).columns
            except OSError:
                columns = 0
            self._write(status_line.line(what, waited_s, columns))
            self._is_there = True
        return status_line.until_next(waited_s)

    def hide(self) -> None:
        """Remove the line, if it is there."""
        if self._is_there:
            self._is_there = False
            self._write("")

    def _write(self, text: str) -> None:
        data = status_line.drawn(text, coloured=self._coloured)
        self._consoles.stderr.overwrite(data.encode(errors="replace"))
