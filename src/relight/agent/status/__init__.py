"""An agent's answers to `relight status`, `top`, `logs`, `stacks` and the status page.

One second into a job, `inspector` opens the socket (`job_socket`), starts the page's process
(`page_process`), and starts recording how time is spent. `answers` computes the answers from the
agent's `view`; a question to all nodes goes through `fan_out` and the coordinator. The types of
questions and answers are in core/status/snapshot; clients are processes/running_jobs.py and
cli/inspect/.
"""
