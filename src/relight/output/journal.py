"""Writes the agent's own output: human-readable lines to stderr, and events for programs."""

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from relight.base.env import Environment
from relight.base.errors import describe_bug
from relight.events.event_types import (
    Event,
    InternalErrorEvent,
    LoggedEvent,
    StateChanged,
    format_line,
    is_user_visible,
)
from relight.host.loop import Alarm
from relight.output.console import Consoles

if TYPE_CHECKING:
    from relight.output.status_line import StatusLine


_MAX_KEPT = 64 * 1024
"""Maximum size of the events in memory, in bytes."""
_MAX_CHANGES = 24
"""Maximum number of state changes to keep in memory per state machine. State changes are stored
separately from other events, so that a link that flaps for an hour evicts only its own state
changes.
"""
_SIZE = 400
"""Approximate size of an event in bytes, without its strings."""
_SHOWN_AFTER_S = 1.0
"""Waits that are shorter than this are not shown, which avoids an import."""


class Journal:
    """Writes the agent's messages and events, in between its workers' output.

    Args:
        consoles: the agent's stdout and stderr.
        directory: the directory for the event log; empty for none.
        verbose: whether to show every event to the user instead of only the notable ones.
        on_console: whether the events are also written to stderr (`--event-log-handler=console`).
        env: the environment, which describes the terminal.

    Attributes:
        events: the event log.
        listeners: called with each new event.
    """

    def __init__(
        self,
        consoles: Consoles,
        directory: str,
        env: Environment,
        *,
        verbose: bool,
        on_console: bool,
    ) -> None:
        self.verbose = verbose
        self._consoles = consoles
        self._stderr = consoles.stderr
        self._env = env
        self._said = ""
        self.listeners: list[Callable[[LoggedEvent], None]] = []
        self.events = EventLog(
            directory,
            self.say,
            self._stderr.say if on_console else None,
            stimulus=lambda: self._stderr.loop.stimulus,
        )
        self._status: Callable[[], str] | None = None
        self._status_since = 0.0
        self._status_line: StatusLine | None = None
        self._status_alarm = Alarm(self._stderr.loop, self._show_status)

    def say(self, message: str) -> None:
        """Write a message to stderr."""
        self._said = message
        self._stderr.say(f"relight: {message}")

    def say_with_traceback(self, message: str) -> None:
        """Write a message that contains a traceback to stderr. The traceback is coloured if stderr
        is a terminal and the environment allows colours.
        """
        if os.isatty(self._stderr.fd):
            from relight.core.workers import colours

            message = colours.coloured(message) if colours.are_wanted(self._env.get) else message
        self.say(message)

    def set_status(self, what: Callable[[], str]) -> bool:
        """Show on a terminal what the agent is waiting for, starting after a second, until
        `clear_status` is called. Return False if stderr isn't a terminal.
        """
        if self._status is None:
            if not os.isatty(self._stderr.fd) or self._env.get("TERM", "dumb") == "dumb":
                return False
            self._status_since = self._stderr.loop.now()
            self._status_alarm.set_after(_SHOWN_AFTER_S)
        self._status = what
        return True

    def clear_status(self) -> None:
        """Remove the line shown by `set_status`."""
        self._status = None
        self._status_alarm.set(None)
        if self._status_line is not None:
            self._status_line.hide()

    def _show_status(self) -> None:
        if self._status is None:
            return
        if self._status_line is None:
            from relight.output.status_line import StatusLine

            self._status_line = StatusLine(self._consoles, self._env)
        waited_s = self._stderr.loop.now() - self._status_since
        self._status_alarm.set_after(self._status_line.show(self._status(), waited_s))

    def say_once(self, message: str) -> None:
        """Write a message to stderr, unless it repeats the previous message."""
        if message != self._said:
            self.say(message)

    def record(self, event: Event) -> None:
        """Write an event to the log, and show it to the user if it is important."""
        self.write(event)
        if self.verbose or is_user_visible(event):
            from relight.events.event_text import describe

            self.say(describe(event))

    def record_internal_error(self, during: str, error: Exception) -> None:
        """Write an unexpected exception to the log, and show it to the user.

        This function doesn't import any of relight's modules, because the exception may come from a
        failed import.
        """
        event = InternalErrorEvent(during, describe_bug(error))
        self.write(event)
        self.say(event.text)

    def write(self, event: Event) -> None:
        """Write an event only to the log. A separate message informs the user."""
        recorded = self.events.write(event)
        for listener in list(self.listeners):
            try:
                listener(recorded)
            except Exception as error:  # errors in listeners must not affect the job
                self.listeners.remove(listener)
                self.record_internal_error("an event is shown", error)


class EventLog:
    """This agent's events, written as JSON lines to `events.jsonl` in the run directory, to stderr,
    or to neither. The latest events are also kept in memory, for queries (agent/status/job_socket).

    Args:
        directory: the run directory; empty for no file.
        say: called once, to tell the user that the file can't be written.
        console: writes a line to the console, if events are written there
            (`--event-log-handler=console`).
        stimulus: returns the id of the input that is being handled.

    Attributes:
        began: when the log was created, on the monotonic clock.
    """

    def __init__(
        self,
        directory: str,
        say: Callable[[str], None] = lambda _: None,
        console: Callable[[str], None] | None = None,
        stimulus: Callable[[], str] = str,
    ) -> None:
        self.began = time.monotonic()
        self._say = say
        self._has_reported = False
        self._console = console
        self._stimulus = stimulus
        self._path = os.path.join(directory, "events.jsonl") if directory else ""
        self._before = ""
        self._number = 0
        self._changes: dict[str, deque[LoggedEvent]] = {}
        self._kept: deque[tuple[LoggedEvent, int]] = deque()
        self._size = 0

    def write(self, event: Event) -> LoggedEvent:
        """Add an event to the log, and return it with its number and time."""
        recorded = self._recorded(event)
        self._keep(recorded)
        if self._console is not None:
            self._console(format_line(recorded))
        self._write_file(recorded)
        return recorded

    def write_to_file(self, event: Event) -> None:
        """Write a large event to the file, without keeping it in memory."""
        self._write_file(self._recorded(event))

    def after(self, number: int) -> list[LoggedEvent]:
        """Return the events in memory whose numbers are higher than this one."""
        changes = chain.from_iterable(self._changes.values())
        kept = chain(changes, (recorded for recorded, _ in self._kept))
        return sorted(recorded for recorded in kept if recorded.number > number)

    def _recorded(self, event: Event) -> LoggedEvent:
        self._number += 1
        t, now = round(time.monotonic(), 6), round(time.time(), 3)
        return LoggedEvent(self._number, t, now, event, self._stimulus())

    def _keep(self, recorded: LoggedEvent) -> None:
        if isinstance(recorded.event, StateChanged):
            core = recorded.event.core
            self._changes.setdefault(core, deque(maxlen=_MAX_CHANGES)).append(recorded)
            return
        size = _SIZE + sum(len(each) for each in recorded.event if isinstance(each, str | tuple))
        self._kept.append((recorded, size))
        self._size += size
        while self._size > _MAX_KEPT:
            self._size -= self._kept.popleft()[1]

    def _write_file(self, recorded: LoggedEvent) -> None:
        if not self._path:
            return
        try:
            with open(self._path, "a") as file:
                file.write(self._before + format_line(recorded) + "\n")
            self._before = ""
        except OSError as error:
            self._before = "\n"  # the disk is full, and part of the line may have been written
            if not self._has_reported:
                self._has_reported = True
                self._say(f"events are missing in {self._path}: {error.strerror}")
