"""A job in a simulated world: `python -m tests.simulation --help`.

It runs the shipped code: agent, link, election, leader lease, coordinator, membership and freezer.
Only the parts that touch the machine are replaced (`stage`): the loop, sockets, name lookups and
blocking calls (`sockets`), workers and their output (`node`), the processes they start
(`processes`), and the service behind a registry (`service`). The group's rules aren't repeated
here. `watch` has the invariants, and `chaos` has the faults.
"""
