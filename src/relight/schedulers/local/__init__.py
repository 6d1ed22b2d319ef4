"""Jobs on this machine: one process per replica."""
