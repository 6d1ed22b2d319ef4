"""What everything else uses: errors, the environment, text, parsing of values and records.

    errors.py      what users see: errors, hints, exit codes
    env.py         the only reader of os.environ
    text.py        times, counts, lists of hosts and ranks, spelling suggestions
    values.py      parsers for the values of flags
    fields.py      input from other processes, checked field by field
    redaction.py   hides secrets in what is shown or kept
    typed.py       NamedTuple, Any, … without importing `typing` (docs/decisions/0014)

It imports nothing else of relight.
"""
