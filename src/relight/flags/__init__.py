"""The flags of `relight run`, and the checked values they become.

`spec.FLAGS` is one table: name, parser, default, help. `arguments.parse` reads a command line and
PET_ variables with it, and `to_spec` turns the result into a `LaunchSpec`: the checked values that
the agent starts from. `usage` prints the help; `suggestions` is loaded only for an error.

A new flag: a row in `spec.FLAGS`, a field of `LaunchSpec`, and the checklist in CONTRIBUTING.md.
Commands other than `run` have tables of their own, next to their code (cli/).
"""
