"""The environment variables that specify a job's trackers. Their names and meanings are the same as
in TorchX 0.7.
"""

import re
from collections.abc import Mapping

JOB_ID, TRACKERS = "TORCHX_JOB_ID", "TORCHX_TRACKERS"
SESSION = "torchx"
"""The session in TORCHX_JOB_ID if a job's handle has relight's own default session."""
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")


def config_variable(name: str) -> str:
    """Return the name of the variable that holds a tracker's configuration."""
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"


def variables(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for trackers and their configurations. The result is empty if there are
    no trackers.

    Raises:
        ValueError: if a tracker's name can't be part of a variable name.
    """
    found = {TRACKERS: ",".join(configs)} if configs else {}
    for name, config in configs.items():
        if not name.isidentifier() and (config or not _FUNCTION.fullmatch(name)):
            what = "an identifier, or module:function without a configuration"
            raise ValueError(f"invalid tracker name {name!r}: expected {what}")
        if config:
            found[config_variable(name)] = config
    return found
