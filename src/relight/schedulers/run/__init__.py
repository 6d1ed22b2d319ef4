"""Lists and controls the jobs that `relight run` has started on this machine."""
