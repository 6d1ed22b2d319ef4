"""One agent and its coordinator: who coordinates, and until when workers may run.

`link_state` is the agent's side of the connection, `lease` until when its workers may run.
`election` and `votes` choose the coordinator among the hosts of an endpoint, `leader_lease` holds a
registry's record. `wire` encodes messages, `authentication` proves the job's token.

The drivers are agent/link.py and rendezvous/. What keeps two generations apart is described in
docs/several-nodes.md; each rule has a mutant in tests/simulation/mutants.py.
"""
