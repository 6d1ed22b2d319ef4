"""Views of running jobs from outside: `relight top` and the status page.

`top_rows` builds the table of `relight top`; `page/` is the status page, a separate process. Both
read the agents' sockets (processes/running_jobs.py).
"""
