"""Runs jobs whose replicas are processes on this machine. These are `local` jobs, and the local
side of `ssh` jobs.
"""
