"""A job's group, from the coordinator's point of view.

`membership.Membership` is the state machine, and `transitions` has its transitions as a table.
Nodes join (`members`), and then a generation is formed (`formation`, `foreign_leases`). Its state
is in `live_generation`. It runs (`roster`, `successes`, `admission`) until a worker fails or a node
is lost, and is then stopped (`teardown`). A new coordinator adopts the generation that nodes
announce (`node_recovery`). After a stop, either the next generation is formed or the job ends
(`restarts`, `restart_decision`, `restart_budget`). `messages` defines the protocol between agents
and their coordinator, `silence` times out silent nodes, and `survivors` determines which workers
keep their process. Two parts are short-lived: `checkpoint_barrier` (preemption) and `reachability`
(--health-check=network).

The driver is agent/group.py. To add a state, extend `GroupState` in group_types.py, the table in
transitions.py and the code in membership.py that uses it, then follow the checklist in
CONTRIBUTING.md. State that must survive a coordinator failover has to be part of `Announce` and
`NodeReady`, a new coordinator's only sources.
"""
