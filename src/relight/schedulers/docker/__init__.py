"""Jobs in Docker: one container a replica."""
