"""Facts about this machine and its network, and findings about them.

`inspection` collects facts, `machine_findings` judges them; `probes` tries connections between
nodes, `endpoint` looks at the endpoint from here. Shared by `--health-check`, by the message of a
join that times out, and by `relight doctor`. `bad_nodes` remembers nodes with broken hardware.
"""
