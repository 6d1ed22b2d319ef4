"""The connection between an agent and its coordinator, the coordinator election, and worker leases.

`link_state` is the agent's side of the connection, and `lease` limits how long its workers may run.
`election` and `votes` choose the coordinator among the hosts of an endpoint, and `leader_lease`
tracks a registry record. `wire` encodes messages, and `authentication` proves knowledge of the
job's token.

The drivers are agent/link.py and rendezvous/. docs/several-nodes.md describes the fencing between
two generations. Each rule has a mutant in tests/simulation/mutants.py.
"""
