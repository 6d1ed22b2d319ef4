"""What is shown of running jobs, from outside of them: `relight top` and the status page.

`top_rows` makes the table of `relight top` of many jobs; `page/` is the status page, a process of
its own. Both read the agents' sockets (processes/running_jobs.py).
"""
