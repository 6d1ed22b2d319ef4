"""The command line: one file for each command.

`main` finds the command. `run`, `launch`, `coordinator` and `doctor` run on training nodes and are
part of the launcher that travels in one file; jobs/ and inspect/ need all of relight.
"""
