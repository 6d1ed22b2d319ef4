"""The same two-rank test, written in three ways."""
