"""`relight doctor`: the nodes meet at the endpoint, probe each other and receive the findings.

`gathering` implements what every node does, and `hosting` implements what the node that serves the
endpoint does. `network` interprets the probes between all pairs of nodes. Facts and findings about
a single machine are collected in health/.
"""
