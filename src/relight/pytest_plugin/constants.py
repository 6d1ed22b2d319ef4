"""Names that the plugin and its mark share. Loaded in every run of pytest: it imports nothing."""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
