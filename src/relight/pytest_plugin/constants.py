"""Names shared by the plugin and its mark. This module doesn't import anything, because it is
loaded in every pytest run.
"""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
