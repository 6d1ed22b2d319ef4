"""Runs jobs on a list of hosts over ssh, with one replica per host."""
