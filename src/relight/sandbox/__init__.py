"""Simulates a cluster on one machine, with virtual hosts, jobs that run on these hosts, and
injected faults.
"""
