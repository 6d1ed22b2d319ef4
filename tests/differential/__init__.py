"""The same command lines through torchrun and through relight."""
