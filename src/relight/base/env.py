"""The only place that reads os.environ.

The environment is read into an `Environment` once, at the start. All other code takes this
`Environment` as an argument, so that neither tests nor the workers' environment depend on hidden
state.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

OWN_VARIABLES = frozenset(
    f"RELIGHT_{name}"
    for name in (
        "CALL_DIRECTORY", "CONFIG_DIR", "END_TIME", "HOOK", "IMAGE", "JOB_DIR", "JOB_ID",
        "LAUNCHER", "LAUNCHER_PATH", "LAUNCHER_URL", "MAX_RETRIES", "MISTAKES", "NAMED_RESOURCES",
        "NODE_NAME", "PARENT_RUN_ID", "PORT_RANGE", "PREEMPTIONS", "PROGRAMS", "PYTHON",
        "PYTHONPATH", "RECOVERY", "REPLICA_ID", "REQUEUES", "ROOM", "SITE", "SSH_ORDER",
        "STATE_DIR", "STATUS_TOKEN", "TERMINATION_LOG", "TOKEN", "TOPOLOGY", "UNFIT_EXIT_CODE",
    )
)  # fmt: skip
"""relight's variables that don't set a flag."""


class Environment(NamedTuple):
    """A copy of the process environment, with the lookups that the launcher needs."""

    variables: Mapping[str, str]

    def get(self, name: str, default: str = "") -> str:
        """Return the value of `name`, or `default` if it is unset or empty."""
        return self.variables.get(name) or default


def mistakes() -> str:
    """Return RELIGHT_MISTAKES, the path of a file that collects relight's unexpected exceptions
    for tests, or an empty string.
    """
    return os.environ.get("RELIGHT_MISTAKES", "")


def state_directory(env: Environment) -> str:
    """Return the directory for data that outlives a command, such as job records.

    The directory is RELIGHT_STATE_DIR if that is set. Otherwise, it follows the XDG base directory
    standard. The directory may not exist yet.
    """
    own = env.get("RELIGHT_STATE_DIR")
    if not own:
        state = env.get("XDG_STATE_HOME")
        if not os.path.isabs(state):  # as the standard requires
            state = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
        own = os.path.join(state, "relight")
    return os.path.abspath(own)


def cache_directory(variables: Mapping[str, str]) -> str:
    """Return relight's directory for data that can be recreated, or an empty string if the user
    doesn't have a home directory. The directory may not exist yet.
    """
    base = variables.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as the XDG Base Directory Specification requires
        home = variables.get("HOME", "")
        if not os.path.isabs(home):
            return ""
        base = os.path.join(home, ".cache")
    return os.path.join(base, "relight")


def read() -> Environment:
    """Return the environment of this process."""
    return Environment(dict(os.environ))
