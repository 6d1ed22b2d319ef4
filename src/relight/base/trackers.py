"""The variables that name the trackers of a job; names and meanings are TorchX's (0.7)."""

import re
from collections.abc import Mapping

JOB_ID, TRACKERS = "TORCHX_JOB_ID", "TORCHX_TRACKERS"
SESSION = "torchx"
"""The session in TORCHX_JOB_ID where relight's handles have their own default."""
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")


def config_variable(name: str) -> str:
    """Return the variable with the configuration of a tracker."""
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"


def variables(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for trackers and their configurations, empty for none.

    Raises:
        ValueError: if a name can't be part of a variable's name.
    """
    found = {TRACKERS: ",".join(configs)} if configs else {}
    for name, config in configs.items():
        if not name.isidentifier() and (config or not _FUNCTION.fullmatch(name)):
            what = "a word, or module:function without config"
            raise ValueError(f"a tracker named {name!r}: expected {what}")
        if config:
            found[config_variable(name)] = config
    return found
