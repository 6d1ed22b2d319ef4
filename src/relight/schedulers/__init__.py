"""The schedulers that run jobs: one folder each, all with the interface of `api`.

`registry` finds a scheduler by its name. `processes` is shared by those that start processes
themselves; `run` shows the jobs of `relight run`, and takes no submissions. A new one: its folder,
a line in `registry`, and the checklist in CONTRIBUTING.md.
"""
