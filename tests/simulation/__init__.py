"""A job in a simulated world: `python -m tests.simulation --help`.

It plays the code that ships: agent, link, election, hold on a register, coordinator,
membership, freezer. Only what touches the machine is replaced (`stage`): the loop, sockets, names
and calls that block (`sockets`), workers and their output (`node`), the processes that they start
(`processes`), the service behind a register (`service`). The rules of the group are not repeated
here: `watch` has the invariants, `chaos` the faults.
"""
