"""relight in the place of torchrun."""
