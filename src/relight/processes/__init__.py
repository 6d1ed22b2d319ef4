"""The processes of one node: started, signalled, reaped, and none left behind.

    supervisor.py        carries out core/workers/supervision
    worker_processes.py  the agent's side of the spawner
    spawner.py           the process that forks and reaps workers, and outlives the agent
    guardian.py, freezer.py, process_handle.py (host/)   ends, freezes, never mistakes a process
    helper.py            a process beside the workers: a health check, the status page, py-spy
    running_jobs.py      the jobs of `relight run` on this machine, by their agents' sockets

docs/decisions/0003-spawner.md says why there is a spawner.
"""
