"""Event handlers from other packages (--event-log-handler=NAME).

A handler is an entry point in the group `relight.events`. The entry point is either a function that
is called with each event as a dict, or a `logging.Handler` (like torch's handlers) that receives
the event's line as a log record.
"""

import json
from collections.abc import Callable
from typing import Any

from relight.base import plugins
from relight.base.values import EVENT_HANDLERS

GROUP = "relight.events"


def check(name: str) -> None:
    """Reject the name of a handler that doesn't exist.

    Raises:
        UsageError: if the handler does not exist. The error lists the known handlers.
    """
    plugins.check("--event-log-handler", name, EVENT_HANDLERS, GROUP)


def load(name: str) -> Callable[[dict[str, Any]], object]:
    """Load a handler, and return the function that handles an event. Loading may raise any
    exception.
    """
    import logging

    found = plugins.find(GROUP)[name].load()
    handler = found() if isinstance(found, type) else found
    if not isinstance(handler, logging.Handler):
        handle: Callable[[dict[str, Any]], object] = handler
        return handle

    def emit(event: dict[str, Any]) -> None:
        line = json.dumps(event)
        record = logging.LogRecord("relight.events", logging.INFO, "", 0, line, None, None)
        handler.handle(record)

    return emit
