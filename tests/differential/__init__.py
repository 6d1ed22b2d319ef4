"""The same command lines, run with torchrun and with relight."""
