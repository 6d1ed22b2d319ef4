"""Foundations: errors, the environment, text, parsing of values and records.

    errors.py      user-visible errors: messages, hints, exit codes
    package.py     this installation: its version and files
    exit_signals.py  the exit with 128 + n on SIGINT or SIGTERM while no agent handles them
    env.py         the only reader of os.environ
    text.py        times, counts, lists of hosts and ranks, spelling suggestions
    hostlist.py    host lists of Slurm and Open MPI
    values.py      parsers for the values of flags
    fields.py      input from other processes, checked field by field
    redaction.py   hiding of secrets in output and records

The `base` package doesn't import from any other relight package.
"""
