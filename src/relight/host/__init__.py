"""What touches this machine, one resource a file."""
