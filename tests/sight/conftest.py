"""Requests to a status page, and what relight prints about it."""

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from conftest import LIMIT_S

ADDRESS = r"status page: (http://127\.0\.0\.1:\d+/)\n"
"""What a job with --status says where its stderr is no terminal."""
State = dict[str, Any]
Find = Callable[..., State]


def read_until(fd: int, pattern: str) -> "re.Match[str]":
    """Read what a process prints until a line is as expected."""
    text = ""
    while (found := re.search(pattern, text)) is None:
        data = os.read(fd, 4096)
        assert data, text
        text += data.decode()
    return found


@pytest.fixture
def find() -> Find:
    """Ask a page until the job is as expected."""

    def run(address: str, expected: Callable[[State], bool] = lambda _: True) -> State:
        deadline = time.monotonic() + LIMIT_S
        state: State = {}
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address}state", timeout=LIMIT_S) as answer:
                state = json.load(answer)
            if expected(state):
                return state
            time.sleep(0.1)
        raise AssertionError(state)

    return run


def wait_until_closed(address: str) -> None:
    """Wait until nobody serves a page any more."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=LIMIT_S).close()
        except OSError:  # refused, or reset
            return
        time.sleep(0.05)
    raise AssertionError(f"{address} is still served")
