"""One agent's relation to its coordinator: the choice of the coordinator, and the lease of the
workers.

`link_state` is the agent's side of the connection, `lease` limits how long its workers may run.
`election` and `votes` choose the coordinator among the hosts of an endpoint, `leader_lease` holds a
registry's record. `wire` encodes messages, `authentication` proves the job's token.

The drivers are agent/link.py and rendezvous/. docs/several-nodes.md describes the fencing between
two generations; each rule has a mutant in tests/simulation/mutants.py.
"""
