"""Names shared by the plugin and its mark. Loaded in every run of pytest, so without imports."""

MARK = "distributed"
TIMEOUT = "distributed_timeout"
