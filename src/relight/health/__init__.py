"""Facts about this machine and its network, and the findings based on them.

`inspection` collects facts, and `machine_findings` evaluates them. `probes` tests connections
between nodes, and `endpoint` examines the endpoint from this machine. They are shared by
`--health-check`, the message for a join that times out, and `relight doctor`. `bad_nodes` records
nodes with broken hardware.
"""
