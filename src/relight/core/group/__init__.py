"""The group of a job, as its coordinator sees it.

`membership.Membership` is the state machine: nodes join (`members`), a generation is formed
(`ranks`, `roster`), it runs, fails or loses a node, stops, and the next one is formed or the job
ends (`restart_decision`, `restart_budget`). `messages` are what agents and coordinator send each
other; `silence` says how long a silent node is waited for. Short-lived parts: `checkpoint_barrier`
(preemption), `reachability` (--health-check=network), `cluster_query` (questions to all nodes).

The driver is agent/group.py. A new state: `GroupState` in group_types.py, every `match` on it in
membership.py, scenarios in tests/core/test_membership.py; what a new coordinator must know has to
travel in `Announce` and `NodeReady`, as it asks nobody else.
"""
