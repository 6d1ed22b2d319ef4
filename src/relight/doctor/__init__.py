"""`relight doctor`: the nodes meet at the endpoint, probe each other, and get the verdict.

`gathering` is one node's part, `hosting` that of the node that has the endpoint, `network` judges
the probes of all pairs. Facts and findings of one machine are health/.
"""
