"""Computes the changes since the last snapshot that a browser received, so that the rows of 1,000
ranks are not sent every second.

A snapshot of a job is a JSON object. Its `ranks` are rows that begin with the rank number, and its
`events` have ascending numbers `n`. For these keys, only changed rows and new events are sent. For
every other key, the whole value is sent if it has changed.
"""

from typing import Any

ROWS, LINES = "ranks", "events"


def changes(sent: dict[str, Any], look: dict[str, Any]) -> dict[str, Any]:
    """Return the changes from the snapshot `sent` to the snapshot `look`. The result is empty if
    the two are equal.

    Args:
        sent: the last snapshot that the browser received. It is initially empty, in which case
            the result contains `full`.
        look: the current snapshot.
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
