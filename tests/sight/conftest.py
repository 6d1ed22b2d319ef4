"""Requests to a status page, and what relight prints about the page."""

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import LIMIT_S

ADDRESS = r"status page: (http://127\.0\.0\.1:\d+/) \(its token is in (/.*)\)\n"
"""The output of a job with --status whose stderr isn't a terminal."""
State = dict[str, Any]
Find = Callable[..., State]


class Link(NamedTuple):
    """A page's address, and the token that allows reading it."""

    address: str
    token: str

    def get(self, what: str) -> str:
        """Send a GET request."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.address + what, headers=headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    def act(self, what: str) -> str:
        """Perform one of the page's actions."""
        headers = {
            "Origin": self.address.rstrip("/"), "Authorization": f"Bearer {self.token}",
        }  # fmt: skip
        request = urllib.request.Request(self.address + what, b"", headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return str(answer.read().decode())


def link_in(text: str) -> Link | None:
    """Return the page announced in a job's log, with the token from its file, or None."""
    found = re.search(ADDRESS, text)
    return Link(found[1], Path(found[2]).read_text()) if found else None


def read_link(fd: int) -> Link:
    """Read a process's output until it announces its page, in a log or on a terminal."""
    on_terminal = r"(http://127\.0\.0\.1:\d+/)#token=(\S+)"
    found = read_until(fd, f"{ADDRESS}|{on_terminal}")
    link = link_in(found[0])
    return link if link is not None else Link(found[3], found[4])


def read_until(fd: int, pattern: str) -> "re.Match[str]":
    """Read a process's output until an expected line."""
    text = ""
    while (found := re.search(pattern, text)) is None:
        data = os.read(fd, 4096)
        assert data, text
        text += data.decode()
    return found


@pytest.fixture
def find() -> Find:
    """Poll a page until the job looks as expected."""

    def run(link: Link, expected: Callable[[State], bool] = lambda _: True) -> State:
        deadline = time.monotonic() + LIMIT_S
        state: State = {}
        while time.monotonic() < deadline:
            state = json.loads(link.get("state"))
            if expected(state):
                return state
            time.sleep(0.1)
        raise AssertionError(state)

    return run


def wait_until_closed(address: str) -> None:
    """Wait until the page is no longer served."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=LIMIT_S).close()
        except OSError:  # refused or reset
            return
        time.sleep(0.05)
    raise AssertionError(f"{address} is still served")
