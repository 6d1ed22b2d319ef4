"""The state of a job for people: the answers of agents, and the use of time.

`snapshot` is the answer of one agent, `goodput` the account of a job's time, `timeline` its events
as bars, `rates` the differences between two samples. Agents answer in agent/status/; commands and
the status page show it (cli/inspect/, inspect/).
"""
