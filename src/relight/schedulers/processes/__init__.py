"""Jobs whose replicas are processes on this machine: `local` jobs, and the local side of `ssh`
jobs.
"""
