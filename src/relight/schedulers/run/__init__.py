"""Jobs started by `relight run` on this machine."""
