"""Jobs on Slurm: one batch script, one agent per node."""
