"""Accesses this machine's resources. Each module deals with one kind of resource. `system` is the
module whose functions differ between operating systems. On Linux, it is `linux`. On macOS, it is
`portable`, which uses only features that are available there. No other module makes this choice. On
any other operating system, using `system` raises UsageError.

    loop.py               the agent's event loop; background.py: calls that may block
    devices.py, gpu_errors.py, numa.py   accelerators and CPUs
    oom_detector.py, kernel_log.py, free_memory.py   out-of-memory kills, and free memory
    files.py, tail.py, scratch.py, checkpoints.py   files and directories; waiting.py: polling
    process_handle.py, priority.py, descriptors.py, user_sockets.py   processes, limits and sockets
    env_fingerprint.py, job_origin.py, user.py   versions, and whose job this is

A function that differs between systems needs a version in both `linux` and `portable`.
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
