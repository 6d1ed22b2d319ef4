"""Runs jobs in Docker, with one container per replica."""
