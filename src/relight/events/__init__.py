"""The events of a job, for `--event-log`, `relight events`, handlers and metrics.

`event_types` has one small immutable type per event. `event_text` has their descriptions, and
`event_lines` reads and filters the lines of a log. `documentation/events.py` documents their fields
(docs/events.md).

`handlers` finds and loads event handlers from other packages.

Users import the types from here.

A new event needs a type, a description and a documentation entry. The code that detects it calls
`Journal.record`.
"""

from relight.events.event_types import *  # noqa: F403
