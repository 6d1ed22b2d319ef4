"""Reads and validates a test's mark."""

import os
from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import pytest

from relight.base import env as environment
from relight.base.text import did_you_mean
from relight.pytest_plugin.constants import MARK, TIMEOUT

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "fake")
_KEYS = ("world_size", "backend", "init", "timeout", "env")
_MARGIN_S = 2.0
"""The test is stopped this many seconds before pytest-timeout's own limit, so that there is time to
report the stacks of all ranks.
"""


class Wanted(NamedTuple):
    """The parsed mark of a test.

    The `backend` field is empty for the machine's default. The `init` field indicates whether to
    initialize the process group. The ranks are stopped after `timeout_s` seconds, or never if that
    is 0.
    """

    world_size: int
    backend: str
    init: bool
    timeout_s: float
    env: Mapping[str, str]


def read(item: pytest.Item, mark: pytest.Mark) -> Wanted:
    """Parse a mark.

    Raises:
        Failed: (pytest's) if an argument is invalid, or if the test can't run on ranks.
    """
    if not isinstance(item, pytest.Function) or _is_test_case(item):
        raise _invalid("is for test functions, and methods of classes other than TestCase")
    if iscoroutinefunction(item.function):
        raise _invalid("is not for async functions; call asyncio.run in the test")
    if len(mark.args) > 1:
        raise _invalid(f"takes world_size and names, not {mark.args[1]!r}")
    given = {**dict(zip(_KEYS, mark.args, strict=False)), **mark.kwargs}
    for name in given:
        if name not in _KEYS:
            hint = did_you_mean(name, _KEYS, f"it has {', '.join(_KEYS)}")
            raise _invalid(f"has no argument {name}; {hint}")
    size = given.get("world_size", 2)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise _invalid(f"has world_size={size!r}: expected the number of ranks, at least 1")
    init = given.get("init", True)
    if not isinstance(init, bool):
        raise _invalid(f"has init={init!r}: expected True or False")
    env = given.get("env") or {}
    if not isinstance(env, dict) or not all(isinstance(x, str) for x in (*env, *env.values())):
        raise _invalid(f"has env={env!r}: expected a dict of strings")
    backend = _backend(given.get("backend"))
    return Wanted(size, backend, init, _timeout(item, given.get("timeout")), env)


def controller() -> int:
    """Return the pid of the pytest process that controls the run. Under xdist, that is the
    controller, not a worker.
    """
    is_worker = "PYTEST_XDIST_WORKER" in environment.read().variables
    return os.getppid() if is_worker else os.getpid()


def _is_test_case(item: pytest.Function) -> bool:
    from unittest import TestCase

    return isinstance(item.cls, type) and issubclass(item.cls, TestCase)


def _backend(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        raise _invalid(f"has backend={value!r}: expected a name, such as gloo")
    for part in value.lower().split(","):  # cpu:gloo,cuda:nccl
        name = part.rpartition(":")[2]
        if name not in BACKENDS:
            hint = did_you_mean(name, BACKENDS, f"known backends: {', '.join(BACKENDS)}")
            raise _invalid(f"has backend={value}: unknown; {hint}")
    return value


def _timeout(item: pytest.Item, value: Any) -> float:
    """Return a test's time limit. The mark takes precedence over pytest-timeout, and pytest-timeout
    takes precedence over the settings.
    """
    margin = 0.0
    if value is None:
        mark = item.get_closest_marker("timeout")
        value = mark and (mark.args[0] if mark.args else mark.kwargs.get("timeout"))
        value = value or item.config.getoption("timeout", None)
        margin = _MARGIN_S if value else 0.0
    if value is None:
        value = item.config.getini(TIMEOUT)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _invalid(f"has timeout={value!r}: expected seconds, 0 for no limit")
    return max(seconds - margin, seconds / 2)


def _invalid(what: str) -> BaseException:
    return pytest.fail.Exception(f"the mark {MARK} {what}", pytrace=False)
