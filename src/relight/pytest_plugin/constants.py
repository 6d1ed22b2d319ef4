"""Names shared by the plugin and its mark. It has no imports, as it is loaded in every pytest
run.
"""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
