"""Jobs on this machine: one process a replica."""
