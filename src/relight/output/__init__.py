"""What workers print, and what the agent prints.

A worker's stdout and stderr are pipes, pseudo-terminals or files (`worker_logs`); `pipe_reader` and
`file_tails` read them, `console` writes whole lines of one rank at a time, `traceback_stream` holds
back a traceback that the report will show. `journal` has the agent's own lines and its events,
`error_files` those that `@record` writes.
"""
