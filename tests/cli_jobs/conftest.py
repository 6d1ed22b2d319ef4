"""A separate working directory, home directory and job state for each test."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Launch

from relight.schedulers.processes.record import LocalRecord

Command = Callable[..., "subprocess.CompletedProcess[str]"]
STARTS_NOTHING = {"cancel", "delete", "describe", "events", "list", "logs", "status", "wait"}
HIDDEN = ("LOGLEVEL", "TORCHX", "XDG_STATE_HOME")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the commands' environment, without anything from the user's."""
    for name in list(os.environ):
        if name.startswith(HIDDEN):
            monkeypatch.delenv(name)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    return {
        "HOME": str(tmp_path / "home"),
        "RELIGHT_STATE_DIR": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
    }


@pytest.fixture
def here(place: Path, variables: dict[str, str], in_process: Launch) -> Command:
    """Run one command in this process, in the working directory."""
    return lambda *words, **options: in_process(*words, **{"cwd": place, **variables, **options})


@pytest.fixture
def relight(launch: Launch, here: Command, place: Path, variables: dict[str, str]) -> Command:
    """Run one command to its end: `relight("submit", "utils.echo")`.

    Those that start nothing run in this process.
    """

    def run(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        if (words[0] in STARTS_NOTHING or "--dryrun" in words) and not options:
            return here(*words)
        return launch(*words, **{"cwd": place, **variables, **options})

    return run


@pytest.fixture
def submitted(here: Command, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Submit a detached job and return its handle. The job is stopped at the end of the test."""

    def submit(*words: str | Path, **options: Any) -> str:
        found = here("submit", "-s", "local", "-cfg", "detach=true", *words, **options)
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()

    yield submit
    for folder in (tmp_path / "state" / "jobs").glob("*"):
        LocalRecord(str(folder)).stop(LIMIT_S)


@pytest.fixture
def ended(relight: Command) -> Callable[..., dict[str, Any]]:
    """Run a job to completion and return its status as JSON."""

    def run(*words: str | Path, **options: Any) -> dict[str, Any]:
        found = relight("submit", "-s", "local", "--json", *words, **options)
        status: dict[str, Any] = json.loads(found.stdout)
        assert found.returncode == status["exitcode"]
        return status

    return run
