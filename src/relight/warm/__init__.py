"""The agent's side of warm starts, which chooses the modules to import ahead of time, and when to
import them.

`preloading` decides when a process that imports modules starts, and `warm_spawner` starts it; that
process then forks the workers. `import_profile` stores a script's imports for its next start, and
`script_scan` and `script_variables` analyse the script itself. With --keep-warm the process
outlives the job, and `warm_processes` finds existing ones. `fork_compat` lists the inherited
attributes that have to be equal. The code that runs in the process itself is in preload/
(docs/decisions/0011-warm.md, 0017-warm-process.md).
"""
