"""Real training programs, run unmodified under torchrun and relight, without additional flags."""
