"""Jobs in Docker: one container per replica."""
