"""Turns the evidence about how workers ended into a single failure report.

The input is text, split into lines. `tracebacks` finds the exception in those lines, using
`traceback_lines`. `last_words` finds the most informative of the other lines, and `excerpts`
shortens text. `causes.judge` applies rules to the evidence and returns a `Verdict` (root cause,
certainty, reason). `blame` determines whether an exception blames a peer. `failure_text` renders
the verdict for the console, JSON, status page and events. `hang_text` and `stack_text` produce the
hang report.

To add a kind of cause, add a rule to `causes.RULES`, scenarios to tests/core/test_causes.py, and a
fault to tests/diagnosis. To add evidence, add a field to `Failure` (core/failure.py) and set it in
agent/postmortem.py.
"""
