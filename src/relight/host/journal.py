"""The agent's own output: lines on stderr for people, events for programs."""

import os
from collections.abc import Callable

from relight.env import Environment
from relight.events import Event, describe, is_news
from relight.host.console import Consoles
from relight.host.files import EventLog


class Journal:
    """Writes the agent's messages and events, beside the output of its workers.

    Args:
        consoles: the agent's stdout and stderr.
        directory: the directory of the event log, or empty for none.
        verbose: whether every event is shown to the user, and not only news.
        on_console: whether the events go to stderr as well (`--event-log-handler=console`).
    """

    def __init__(
        self, consoles: Consoles, directory: str, *, verbose: bool, on_console: bool
    ) -> None:
        self.verbose = verbose
        self.on_event: Callable[[Event], None] | None = None
        """Called with each event, for a program that embeds the agent."""
        self._stderr = consoles.stderr
        self._said = ""
        self._log = EventLog(directory, self._stderr.say if on_console else None)

    def say(self, message: str) -> None:
        """Write a message to stderr."""
        self._said = message
        self._stderr.say(f"relight: {message}")

    def say_with_traceback(self, message: str, env: Environment) -> None:
        """Write a message to stderr, with its traceback in colour if that is a terminal and the
        environment allows it.
        """
        if os.isatty(self._stderr.fd):
            from relight.core import colours

            message = colours.coloured(message) if colours.are_wanted(env.get) else message
        self.say(message)

    def say_once(self, message: str) -> None:
        """Write a message to stderr, unless it was the last one."""
        if message != self._said:
            self.say(message)

    def record(self, event: Event) -> None:
        """Write an event to the log, and show it to the user if it is news."""
        self.write(event)
        if self.verbose or is_news(event):
            self.say(describe(event))

    def write(self, event: Event) -> None:
        """Write an event to the log only; the user gets another message about it."""
        self._log.write(event)
        if self.on_event is not None:
            self.on_event(event)
