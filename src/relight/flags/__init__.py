"""The flags of `relight run`, and the checked values that they are parsed into.

`spec.FLAGS` is a single table with each flag's name, parser, default and help. `arguments.parse`
uses it to read a command line and the PET_ variables, and `to_spec` turns the result into a
`LaunchSpec`, which contains the checked values that the agent starts with. `rdzv_conf` is the same
kind of table for the keys of `--rdzv-conf`. `usage` prints the help, and `suggestions` is loaded
only if there is an error.

A new flag needs a row in `spec.FLAGS` and a field in `LaunchSpec`. CONTRIBUTING.md has a checklist
with the remaining steps. Commands other than `run` have their own tables next to their code (cli/).
"""
