"""The runner: from a job description to the scheduler's job and its record."""
