"""The process that imports modules once and forks workers.

`warm_fork` is the warm spawner of a job, `warm_process` the process that outlives jobs, `guard` its
parent. `importer` imports, and skips modules that can't be imported ahead. The tracers
(`env_tracer`, `argv_tracer`, `file_tracer`) find out what imports depend on; `lazy_modules`,
`random_state` and `temp_dirs` make a forked worker look like a fresh one. The agent's side is
warm/.
"""
