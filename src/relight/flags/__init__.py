"""The flags of `relight run`, and the checked values that they are parsed into.

`spec.FLAGS` is a single table with each flag's name, parser, default and help. `arguments.parse`
uses it to read a command line and the PET_ variables, and `to_spec` turns the result into a
`LaunchSpec`, which contains the checked values that the agent starts with. `usage` prints the help;
`suggestions` is loaded only if there is an error.

A new flag needs a row in `spec.FLAGS`, a field in `LaunchSpec`, and the steps in the checklist in
CONTRIBUTING.md. Commands other than `run` have their own tables next to their code (cli/).
"""
