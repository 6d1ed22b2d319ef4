"""Real clusters on one machine: Slurm and Open MPI."""
