"""relight launches distributed training and keeps it alive.

The package imports nothing by itself: the launch path has a budget of milliseconds, and
training scripts that use `relight.worker` should not pay for the launcher.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relight.function import launch as launch

__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    if name == "launch":
        from relight.function import launch

        return launch
    raise AttributeError(f"module 'relight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "launch"]
