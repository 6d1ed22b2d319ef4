"""Which packages can be preloaded, tried with many of them: `make packages`."""
