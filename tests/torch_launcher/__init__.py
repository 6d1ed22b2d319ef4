"""torch.distributed.launcher and its drop-in replacement, side by side."""
