"""The commands that act on jobs, run as whole processes."""
