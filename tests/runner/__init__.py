"""The runner: from the description of a job to the scheduler's job and its record."""
