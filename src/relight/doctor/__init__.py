"""`relight doctor`: the nodes meet at the endpoint, probe each other and receive a verdict.

`gathering` implements a node's part in this, and `hosting` the part of the node that serves the
endpoint. `network` interprets the probes between all pairs of nodes. Facts and findings about a
single machine are in health/.
"""
