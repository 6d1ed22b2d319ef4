"""The checks of `make gpu`: what relight does with one NVIDIA GPU."""
