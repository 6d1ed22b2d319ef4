"""The agent's connection to its coordinator, the election of the coordinator, and worker leases.

`link_state` is the agent's side of the connection, and `lease` limits how long the agent's workers
may run. `election` and `votes` choose the coordinator from an endpoint's hosts, and `leader_lease`
tracks a record in a registry. `wire` encodes messages, and `authentication` proves knowledge of the
job's token.

The drivers are agent/link.py and rendezvous/. How a generation is fenced off from the next
generation is described in docs/several-nodes.md. Each rule has a mutant in
tests/simulation/mutants.py.
"""
