"""The built-in components: functions whose signatures define their command lines."""

from contextvars import ContextVar

from relight.job import launcher_file

IMAGE = "ghcr.io/pytorch/torchx:2026.10.26"
"""Default `image` of components: TorchX's own image."""
NO_IMAGE = "<NONE>"
"""The `image` of a component that runs a program without an image."""

AUTO, TORCHRUN = "auto", "torchrun"
LAUNCHERS = (AUTO, launcher_file.INSTALLED, launcher_file.TRAVELS, TORCHRUN)
"""Values of `relight submit --launcher` (`job/launcher_file.py`); all except torchrun start
`relight run`.
"""
launcher: ContextVar[str] = ContextVar("launcher", default=AUTO)
"""The launcher that built-in components use, one of LAUNCHERS. `relight submit --launcher` sets it
while it calls a component.
"""

BUILT_IN = {
    "dist": ("ddp", "spmd", "torchrun"),
    "utils": ("echo", "sh", "python", "touch", "copy", "binary", "booth"),
}


def names() -> list[str]:
    """Return the names of the built-in components."""
    return [f"{module}.{name}" for module, names in BUILT_IN.items() for name in names]
