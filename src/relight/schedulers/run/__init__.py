"""Jobs that `relight run` has started on this machine."""
