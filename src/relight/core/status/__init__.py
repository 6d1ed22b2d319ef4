"""The state of a job for people: what agents answer, and where the time went.

`snapshot` is the answer of one agent, `goodput` the account of a job's time, `timeline` its events
as bars, `rates` the differences between two looks. Agents answer in agent/status/; commands and the
status page show it (cli/inspect/, inspect/).
"""
