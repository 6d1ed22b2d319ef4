"""An agent's answers to `relight status`, `top`, `logs`, `stacks` and the status page.

One second into a job, `inspector` opens the socket (`job_socket`), starts the page's process
(`page_process`), and begins the account of time. `answers` computes the answers from the
agent's `view`; a question to all nodes goes through `fan_out` and the coordinator. Questions and
answers are types of core/status/snapshot; clients are processes/running_jobs.py and cli/inspect/.
"""
