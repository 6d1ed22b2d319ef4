"""Implements the views of running jobs from outside: `relight top` and the status page.

`top_rows` builds the table of `relight top`, and `page/` implements the status page, which runs as
a separate process. Both views read job state through the agents' sockets
(processes/running_jobs.py), and `gpus` reads how busy this machine's GPUs are.
"""
