"""What is wrong with a machine or a network, each thing with its remedy: `relight doctor`.

    inspection.py   looks at this machine                   machine.py    what is wrong with it
    probes.py       tries all pairs of nodes                network.py    who can't talk to whom
    endpoint.py     looks at the endpoint from here, and says what is wrong there
    gathering.py    the nodes meet at the endpoint, probe each other, hear the verdict

The files on the right are pure: from facts to findings (findings.py).
"""

from relight.doctor.endpoint import at_timeout as at_timeout
