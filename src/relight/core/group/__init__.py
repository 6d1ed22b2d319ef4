"""The group of a job, as its coordinator sees it.

`membership.Membership` is the state machine: nodes join (`members`), a generation is formed
(`ranks`, `roster`), it runs, fails or loses a node, stops, and the next one is formed or the job
ends (`restart_decision`, `restart_budget`). `messages` defines the protocol between agents and
coordinator; `silence` times out silent nodes; `survivors` lets workers keep their process.
Short-lived parts: `checkpoint_barrier` (preemption), `reachability` (--health-check=network),
`cluster_query` (queries to all nodes).

The driver is agent/group.py. A new state: `GroupState` in group_types.py, whatever reads it in
membership.py, and the checklist in CONTRIBUTING.md. State that must survive a coordinator failover
has to travel in `Announce` and `NodeReady`, the only sources of a new coordinator.
"""
