"""Code that accesses this machine, one resource per file.

`system` is the module with the functions that differ between systems: `linux`, or `portable`, which
uses only what macOS has. The choice is made here and nowhere else. On any other system, using it
raises UsageError.
"""

import sys
from typing import TYPE_CHECKING

from relight.base.errors import UsageError

__all__ = ["system"]

if TYPE_CHECKING or sys.platform == "linux":
    from relight.host import linux as system
elif sys.platform == "darwin":
    from relight.host import portable as system
else:

    def __getattr__(name: str) -> object:
        if name != "system":
            raise AttributeError(name)
        raise UsageError(
            f"relight runs workers on Linux and, on a single node, macOS; this is {sys.platform}",
            hint="use relight submit to run jobs on a cluster, or use WSL",
        )
