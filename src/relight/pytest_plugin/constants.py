"""Defines names that the plugin and its mark share. This module doesn't import anything, because it
is loaded in every pytest run.
"""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
