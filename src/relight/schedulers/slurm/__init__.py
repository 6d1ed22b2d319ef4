"""Runs jobs on Slurm, with one batch script per job and one agent per node."""
