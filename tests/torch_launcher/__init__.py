"""torch.distributed.launcher and the drop-in for it, side by side."""
