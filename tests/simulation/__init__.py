"""A job in a simulated world: `python -m tests.simulation --help`.

What is played is the code that ships: agent, link, election, hold on a register, coordinator,
membership, freezer. Only what touches the machine is replaced (`stage`): the loop, sockets, names
and calls that block (`sockets`), workers and their output (`node`), the processes that they start
(`processes`), the service behind a register (`service`). There are no rules of the group here;
`watch` says what must hold, `chaos` what goes wrong.
"""
