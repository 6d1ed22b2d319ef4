"""`relight doctor`: the nodes meet at the endpoint, probe each other and receive the findings.

`gathering` implements the part of each node, and `hosting` implements the part of the node that
serves the endpoint. `network` interprets the probes between all pairs of nodes. Facts and findings
about a single machine are in health/.
"""
