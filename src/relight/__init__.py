"""relight launches distributed training and keeps it alive.

The package imports nothing by itself: the launch path has a budget of milliseconds, and
training scripts that use `relight.worker` should not pay for the launcher.
"""

__version__ = "0.1.0"
