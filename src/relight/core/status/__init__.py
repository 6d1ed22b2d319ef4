"""The job status shown to users, which consists of the agents' replies and of how the job spends
its time.

`snapshot` defines an agent's reply, `goodput` breaks down a job's time, `timeline` turns a job's
events into bars, and `rates` computes the differences between two samples. The agents' side is in
agent/status/. Commands and the status page display the result (cli/inspect/, inspect/).
"""
