"""Makes all of relight's decisions, without I/O, clocks, threads or randomness. The current time is
passed as an argument.

    group/       the coordinator's side: membership, generations, restarts, the end of the job
    link/        one agent and its coordinator: leases, elections, registry-based leadership
    workers/     one node's workers: stop, escalation, hang detection, terminal output
    diagnosis/   root cause analysis of worker failures, and the failure report
    status/      contents of `relight status` and `top`, and how the job spent its time
    failure.py   how a worker ended
    ranks.py     which worker has which rank
    env_diff.py  differences between the environments of a job's nodes

The large state machines (`membership`, `link_state`, `election`, `supervision`) have
`step(event, now)`, which returns effects, as well as `deadline`, `explain` and `check`. Their parts
have methods named after what happened. Modules outside the core carry out the effects. There are
scenarios for each state machine in tests/core, and tests/simulation runs all of them together.
"""
