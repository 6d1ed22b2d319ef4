"""The agent: one process for each node of a job.

    start.py, prepare.py     from checked flags to an `AgentConfig`, or an error of one line
    agent.py                 get ready, run a generation, react; read this first
    node.py                  this node in its group: its state, and its side of every message
    worker_group.py          the workers of one generation; watchdogs.py: hangs, slow ranks, timers
    group.py, coordinator.py, link.py    the group, served to other nodes, and reached from them
    postmortem.py            evidence after a failure, for core/diagnosis
    preemption.py, shutdown.py           signals, and how a node leaves
    status/                  answers to `relight status` and other commands

They carry out the decisions of the state machines in core/. Modules for failures and shutdown load
one second after the start (docs/decisions/0026).
"""
