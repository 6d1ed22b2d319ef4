"""Contains one package for each scheduler that can run jobs. All schedulers implement the interface
in `api`.

`registry` finds a scheduler by its name. `processes` is shared by the schedulers that start
processes themselves. `run` lists `relight run` jobs and doesn't accept submissions. To add a
scheduler, create its package, add a line to `registry`, and follow the checklist in
CONTRIBUTING.md.
"""
