"""Simulates a cluster on one machine, with virtual hosts, jobs that run on these hosts, and
injected faults.

    switch.py            creates the hosts (network namespaces) and forwards their packets
    lab.py               the hosts as Python objects, also for tests
    faults.py            parses a faults file; to add a kind of fault, start here
    run.py               starts an agent on each host and injects the faults
    sandbox_job.py       when the job has ended, and its exit code
    sandbox_keys.py, keys.py   faults injected from the keyboard
    access.py            whether this user may create hosts
"""
