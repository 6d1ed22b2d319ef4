"""The job status that is shown to users. It consists of the agents' replies, and of how the job
spends its time.

`snapshot` defines an agent's reply, `goodput` breaks down a job's time, `timeline` turns a job's
events into bars, and `cluster_query` asks all nodes of a group. `rates` computes the differences
between two samples. The agents' side is in agent/status/. The commands and the status page that
display the results are in cli/inspect/ and inspect/.
"""
