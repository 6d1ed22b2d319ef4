"""Starts, signals and reaps the processes on one node, and leaves none behind.

    supervisor.py        carries out core/workers/supervision
    worker_processes.py  the agent's side of the spawner
    spawner.py           the process that forks and reaps workers, and outlives the agent
    guardian.py, freezer.py    end and freeze processes (host/process_handle.py identifies them)
    helper.py            a process other than a worker: a health check, the status page, py-spy
    running_jobs.py      the `relight run` jobs on this machine, found by their agents' sockets

docs/decisions/0003-spawner.md explains why there is a spawner.
"""
