"""The process that runs a command on a Ray cluster's node, tested without Ray."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment
from old_systems.test_old_systems import SYSTEMS, variables
from test_orphans import marker, wait_until_gone, wait_until_up

from relight.schedulers.ray import guard

__all__ = ["marker"]

Begin = Callable[[str], socket.socket]


@pytest.fixture(params=["none", "both"])
def begin(request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Start the guard for a shell command, and return its socket."""
    system = SYSTEMS.get(request.param, variables())
    ours: list[socket.socket] = []

    def start(command: str) -> socket.socket:
        channel, theirs = socket.socketpair()
        ours.append(channel)
        channel.settimeout(LIMIT_S)
        subprocess.run(
            [sys.executable, guard.__file__, str(theirs.fileno())],
            env=clean_environment(**system), pass_fds=[theirs.fileno()], check=True,
        )  # fmt: skip
        theirs.close()
        order = {
            "argv": ["sh", "-c", command], "env": dict(os.environ), "cwd": "/", "grace_s": 600.0,
            "output": -1,
        }  # fmt: skip
        channel.sendall(json.dumps(order).encode() + b"\n")
        return channel

    yield start
    for channel in ours:
        channel.close()


def answer(channel: socket.socket) -> dict[str, object]:
    with channel.makefile("rb") as lines:
        found: dict[str, object] = json.loads(lines.readline())
        return found


def test_exit_code_is_reported_once_all_processes_have_exited(begin: Begin, marker: str) -> None:
    """Processes that left its session are stopped first."""
    channel = begin(f"(setsid true &); (setsid sleep {marker} &); exit 7")
    assert answer(channel) == {"exitcode": 7, "error": ""}
    wait_until_gone(marker)


def test_command_gets_sigterm_before_sigkill(begin: Begin, marker: str, tmp_path: Path) -> None:
    """Closing the socket kills the command after its grace period."""
    saved = tmp_path / "saved"
    channel = begin(f"trap 'echo > {saved}; exit' TERM; sleep {marker} & wait")
    wait_until_up(marker, 2)
    channel.close()
    wait_until_gone(marker)
    assert saved.exists()
