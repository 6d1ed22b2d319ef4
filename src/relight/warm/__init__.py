"""The agent's side of warm starts: when modules are imported ahead, and which.

`preloading` decides when a process that imports modules starts, and `warm_spawner` starts it; it
then forks the workers. `import_profile` keeps what a script imports for the next start, and
`script_scan` and `script_variables` read the script itself. With --keep-warm that process outlives
the job; `warm_processes` finds one. `fork_compat` says what a worker inherits and what must be
equal. The process itself is preload/ (docs/decisions/0011-warm.md, 0017-warm-process.md).
"""
