"""The agent's side of warm starts, which chooses the modules to import ahead of time, and when to
import them.

`preloading` decides when to start a process that imports modules, and `warm_spawner` starts it. The
process then forks the workers. `import_profile` stores which modules a script imports for its next
start, and `script_scan` and `script_variables` analyze the script itself. With --keep-warm, the
process outlives the job, and `warm_processes` finds such processes. `fork_compat` lists the
inherited attributes that must be equal. The code that runs in the process itself is in preload/
(docs/decisions/0011-warm.md, 0017-warm-process.md).
"""
