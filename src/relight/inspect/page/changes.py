"""Deltas for browsers, so that 1,000 ranks are not sent every second.

A look at a job is a JSON object. Its `ranks` are rows that begin with their rank, and its `events`
are numbered by `n`, ascending; only new ones of both are sent. Other parts are sent whole if they
differ.
"""

from typing import Any

ROWS, LINES = "ranks", "events"


def changes(sent: dict[str, Any], look: dict[str, Any]) -> dict[str, Any]:
    """Return the difference from `sent` to `look`; empty if they are equal.

    Args:
        sent: the browser's last look; initially empty, in which case the result has `full`.
        look: the current look.
    """
    new = {
        name: part
        for name, part in look.items()
        if name not in (ROWS, LINES) and sent.get(name) != part
    }
    if not sent:
        new["full"] = True
    known = {row[0]: row for row in sent.get(ROWS, ())}
    rows = [row for row in look.get(ROWS, ()) if known.pop(row[0], None) != row]
    if rows:
        new[ROWS] = rows
    if known:
        new["gone"] = list(known)
    last = max((event["n"] for event in sent.get(LINES, ())), default=-1)
    events = [event for event in look.get(LINES, ()) if event["n"] > last]
    if events:
        new[LINES] = events
    return new
