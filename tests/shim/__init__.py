"""relight as a replacement for torchrun."""
