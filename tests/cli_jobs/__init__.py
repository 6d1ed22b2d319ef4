"""The commands on jobs, as whole processes."""
