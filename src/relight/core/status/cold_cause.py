"""Explains a slow start or restart, by finding out why workers imported modules that should have
been available in a warm process.
"""

from relight.base.text import format_duration
from relight.events.event_types import Event, PreloadWithout, WarmProcessUnfit, WorkersForked

_LONG_S = 1.0


class ColdCause:
    """Finds the cause of a cold start in the latest generation's events.

    Attributes:
        is_surprise: whether a warm process existed but couldn't be used.
    """

    def __init__(self) -> None:
        self.is_surprise = False
        self._unfit = ""
        self._cause = ""
        self._left_out: dict[str, PreloadWithout] = {}

    def step(self, event: Event) -> None:
        """Process an event."""
        match event:
            case WarmProcessUnfit():
                self._unfit = f"can't use warm process {event.pid}: {event.reason}"
            case PreloadWithout():
                self._left_out[event.module] = event
            case WorkersForked():
                self.is_surprise = bool(self._unfit) and not event.warm
                self._cause = "" if event.warm else self._unfit or event.reason
                self._unfit = ""

    def text(self) -> str:
        """Return the cause, or an empty string if the workers had all or nearly all modules."""
        if self._cause:
            return self._cause
        if not self._left_out:
            return ""
        longest = max(self._left_out.values(), key=lambda each: each.seconds)
        if longest.seconds < _LONG_S:
            return ""
        took = format_duration(longest.seconds)
        return f"each worker imports {longest.module} itself ({took}): {longest.reason}"
