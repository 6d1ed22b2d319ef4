"""`relight doctor`: the nodes meet at the endpoint, probe each other and receive the findings.

`gathering` implements the role of every node, and `hosting` implements the role of the node that
serves the endpoint. `network` interprets the probes between all pairs of nodes. Facts and findings
about a single machine are collected in health/.
"""
