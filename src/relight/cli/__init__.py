"""The command line, with one module per command.

`main` dispatches to the command. `run`, `launch` and `coordinator` run on training nodes, so they
are part of the single-file launcher. jobs/ and inspect/ need all of relight.
"""
