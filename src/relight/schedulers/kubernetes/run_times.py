"""Determines which timeouts a role's `relight run` command uses, based on the command line and the
role's environment variables.

Schedulers don't import the launcher, so this module repeats the launcher's defaults (flags/spec.py,
flags/rdzv_conf.py).
"""

import math
import re

from relight.job.app import Role

_SHUTDOWN_S, _CHECKPOINT_S, _JOIN_S = 30.0, 120.0, 600.0
_MAX_S = 2e6
"""The launcher rejects longer times."""
_MARGIN_S = 10
"""Additional time for the agent to exit after its workers have exited."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_SHUTDOWN = re.compile(rf"--shutdown[-_]timeout[= ]['\"]?{_NUMBER}")
_CHECKPOINT = re.compile(rf"\bcheckpoint_timeout={_NUMBER}")
_JOIN = re.compile(rf"\bjoin_timeout={_NUMBER}")


def grace_s(role: Role) -> int:
    """Return a pod's grace period, which gives its workers time to save a checkpoint."""
    text = _text(role)
    shutdown = _parse(_SHUTDOWN, text, _number(role.env.get("PET_SHUTDOWN_TIMEOUT"), _SHUTDOWN_S))
    waits = "at-checkpoint" in text or _CHECKPOINT.search(text)
    checkpoint = _parse(_CHECKPOINT, text, _CHECKPOINT_S) if waits else 0.0
    return math.ceil(max(shutdown, checkpoint)) + _MARGIN_S


def join_timeout_s(role: Role) -> float:
    """Return how long agents wait for a missing node."""
    return _parse(_JOIN, _text(role), _JOIN_S)


def _text(role: Role) -> str:
    return " ".join((*role.args, role.env.get("PET_RDZV_CONF", "")))


def _parse(pattern: re.Pattern[str], text: str, default: float) -> float:
    match = pattern.search(text)
    return min(float(match[1]), _MAX_S) if match else default


def _number(text: str | None, default: float) -> float:
    return float(text) if text and re.fullmatch(_NUMBER, text) else default
