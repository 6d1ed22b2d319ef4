"""What jobs record, and `relight tracker`."""
