"""Pure decisions: no I/O, no clock, no threads, no randomness; time is an argument.

    group/       the coordinator's side: membership, generations, restart or end
    link/        one agent and its coordinator: leases, elections, leadership by a registry
    workers/     one node's workers: stop, escalation, hang detection, terminal output
    diagnosis/   from the ends of workers to the root cause, and the report in words
    status/      contents of `relight status` and `top`, and the account of time
    failure.py   how a worker ended; ranks.py: which worker has which rank

A state machine has `step(event, now)`, which returns effects, `deadline`, `explain` and `check`.
A module outside of the core performs the effects. tests/core has scenarios for each;
tests/simulation plays all of them together.
"""
