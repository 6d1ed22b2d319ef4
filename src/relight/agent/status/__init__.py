"""An agent's replies to `relight status`, `top`, `logs`, `stacks` and the status page.

One second into a job, `inspector` opens the socket (`job_socket`), starts the page's process
(`page_process`), and starts recording how time is spent. `answers` computes the replies from the
agent's `view`. A query to all nodes goes through `fan_out` and the coordinator. The types of
queries and replies are defined in core/status/snapshot. The clients are processes/running_jobs.py
and cli/inspect/.
"""
