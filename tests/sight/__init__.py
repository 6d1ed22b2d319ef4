"""What a job shows of itself."""
