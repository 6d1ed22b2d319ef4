"""The job status shown to users: the agents' answers, and how the job spends its time.

`snapshot` is one agent's answer, `goodput` breaks down a job's time, `timeline` turns its events
into bars, and `rates` computes the differences between two samples. The agents' side is in
agent/status/. Commands and the status page display the result (cli/inspect/, inspect/).
"""
