"""Names shared by the plugin and its mark. It doesn't import anything, as it is loaded in
every pytest run.
"""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
