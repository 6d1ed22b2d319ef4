"""Jobs on Slurm: one batch script, one agent a node."""
