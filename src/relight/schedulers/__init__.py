"""The schedulers that run jobs, one package per scheduler. They all implement the interface in
`api`.

`registry` finds a scheduler by its name. `processes` is shared by the schedulers that start
processes themselves. `run` shows `relight run` jobs and accepts no submissions. To add a scheduler,
create its package, add a line to `registry`, and follow the checklist in CONTRIBUTING.md.
"""
