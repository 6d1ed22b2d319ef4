"""The checks of `make gpu`, which exercise relight on one NVIDIA GPU."""
