"""Turns the evidence about workers' ends into one account of the failure.

Text comes in as lines: `tracebacks` finds the exception in them (`traceback_lines`), `last_words`
the most telling other line, `excerpts` shortens. `causes.judge` weighs the evidence by rules and
returns a `Verdict` (root cause, certainty, reason), `blame` reads whether an exception blames a
peer. `failure_text` renders the verdict; console, JSON, status page and events show that and
nothing else. `hang_text` and `stack_text` are the report of a hang.

A new kind of cause: a rule in `causes.RULES`, scenarios in tests/core/test_causes.py, a fault in
tests/diagnosis. New evidence: a field of `Failure` (core/failure.py), filled in by
agent/postmortem.py.
"""
