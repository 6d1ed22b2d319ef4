"""The events of a job: what `--event-log`, `relight events`, handlers and metrics get.

`event_types` has one small immutable type for each event; `event_text` says each in words,
`event_schema` says what the fields mean (docs/events.md is made from it), and `event_lines` reads
and chooses the lines of a log.

A new event: a type, its words, its schema; the code that knows of it calls `Journal.record`.
"""
