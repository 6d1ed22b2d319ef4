"""Jobs of several nodes on hosts of their own, with a network that can be cut."""
