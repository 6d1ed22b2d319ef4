"""The agent, which is one process on each node in a job.

    start.py, prepare.py     from the flags to an `AgentConfig`
    checks.py                checks the flags against this machine; entrypoint.py: the script
    agent.py                 the main loop of one node; read this first
    node.py                  this node's state, and the messages to and from its group
    worker_group.py          the workers of one generation; watchdogs.py: hangs, slow ranks, timers
    group.py, coordinator.py, link.py    the group itself, its server, and the connection to it
    missing_at_init.py       the workers that init_process_group is still waiting for
    postmortem.py            collects evidence after a failure, for core/diagnosis
    preemption.py, shutdown.py           signals and preemption, and leaving the job
    status/                  answers to `relight status` and other commands

These modules carry out the decisions of the state machines in core/. Modules that are only needed
for failures and shutdown are loaded one second after the start (docs/decisions/0026).
"""
