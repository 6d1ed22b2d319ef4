"""What an agent tells: lines on stderr for people, events for programs."""

from relight.events import Event, describe, is_news
from relight.host.console import Consoles
from relight.host.files import EventLog


class Journal:
    """The agent's own words, beside the output of its workers.

    Args:
        consoles: where people read.
        directory: where the event log is, or empty for none.
        verbose: whether people are told of each event, and not only of news.
        on_console: whether the events go to stderr as well (`--event-log-handler=console`).
    """

    def __init__(
        self, consoles: Consoles, directory: str, *, verbose: bool, on_console: bool
    ) -> None:
        self.verbose = verbose
        self._stderr = consoles.stderr
        self._log = EventLog(directory, self._stderr.say if on_console else None)

    def say(self, message: str) -> None:
        """Tell the user, on stderr."""
        self._stderr.say(f"relight: {message}")

    def record(self, event: Event) -> None:
        """Write an event down, and tell the user if it is news."""
        self.write(event)
        if self.verbose or is_news(event):
            self.say(describe(event))

    def write(self, event: Event) -> None:
        """Write an event down of which the user is told in other words."""
        self._log.write(event)
