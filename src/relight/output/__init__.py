"""Handles the output of the workers and the agent.

A worker's stdout and stderr are pipes, pseudo-terminals or files (`worker_logs`). `pipe_reader` and
`file_tails` read them, `console` writes whole lines from one rank at a time, and `traceback_stream`
holds back a traceback that the report will show. `journal` writes the agent's own lines and events,
and `error_files` handles the files that `@record` writes.
"""
