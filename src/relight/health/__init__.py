"""Facts about this machine and its network, and the findings based on them.

`inspection` collects facts, and `machine_findings` evaluates them. `probes` tests connections
between nodes, and `endpoint` examines the endpoint from this machine. These modules are used by
`--health-check`, by the message about a rendezvous that timed out, and by `relight doctor`.
`bad_nodes` records nodes with broken hardware.
"""
