"""Multi-node jobs on separate hosts, with a network that can be cut."""
