"""How agents find their job's coordinator.

`autodetect` fills in flags from a cluster's environment variables (`cluster_env`), and `config`
turns the flags into a `Meeting`: the endpoint or registry where the nodes meet. `finders` chooses
the finder for it, which searches for the coordinator on behalf of the agent's link (`discovery`):

    endpoint_finder.py   one endpoint host
    election_finder.py   several endpoint hosts, which elect one (core/link/election)
    register_finder.py   a registry with a leader lock (`leader_lock`, core/link/leader_lease)

`backends` opens a registry: `etcd`, `file` or a plug-in. To add a backend, start in `backends` and
follow the checklist in CONTRIBUTING.md.
"""
