"""Finds what is wrong with a machine or a network, and names the remedies: `relight doctor`.

    inspection.py   examines this machine                   machine.py    judges the machine
    probes.py       tries all pairs of nodes                network.py    judges the connections
    endpoint.py     examines the endpoint from here, and judges it
    gathering.py    the nodes meet at the endpoint, probe each other, get the verdict

The files on the right are pure: from facts to findings (findings.py).
"""

from relight.health.endpoint import at_timeout as at_timeout
