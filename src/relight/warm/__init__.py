"""The agent's side of warm starts: the choice of modules to import ahead, and the time.

`preloading` decides when a process that imports modules starts, and `warm_spawner` starts it; it
then forks the workers. `import_profile` stores a script's imports for the next start, and
`script_scan` and `script_variables` read the script itself. With --keep-warm that process outlives
the job; `warm_processes` finds one. `fork_compat` lists the inherited properties that have to be
equal. The process itself is preload/ (docs/decisions/0011-warm.md, 0017-warm-process.md).
"""
