"""Implements the process that imports modules once and then forks workers.

`warm_fork` is a job's warm spawner, `warm_process` is the process that outlives jobs, and `guard`
is their parent process. `importer` imports the modules, and skips those that can't be imported
ahead of time. The tracers (`env_tracer`, `argv_tracer`, `file_tracer`) determine what imports
depend on. `lazy_modules`, `random_state` and `temp_dirs` make a forked worker look like a fresh
one. The agent's side of this is in warm/.
"""
