"""What runs jobs: from a description to what a scheduler has, and what is kept of it."""
