"""Facts about this machine and its network, and the findings based on them.

`inspection` collects facts, and `machine_findings` evaluates them. `probes` tests connections
between nodes, and `endpoint` examines the endpoint from this machine. They are used by
`--health-check`, by `relight doctor`, and to explain a rendezvous that has timed out. `bad_nodes`
records nodes with broken hardware.
"""
