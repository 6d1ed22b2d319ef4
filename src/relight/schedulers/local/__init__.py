"""Runs jobs on this machine, with one process per replica."""
