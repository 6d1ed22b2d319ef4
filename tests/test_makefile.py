"""`make` only sets up a target's requirements."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.needs_make


def commands(target: str) -> str:
    """Return what `make target` would run in a fresh clone."""
    variables = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", "PYTHON=python3", target],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def installed(target: str) -> list[str]:
    """Return the packages and flags of each `pip install` for a target. In a dry run, a nested make
    repeats steps that the outer one would have completed by then.
    """
    found = re.findall(r"pip install .*-c requirements.lock (.*)", commands(target))
    return list(dict.fromkeys(found))


def test_make_demo_installs_no_test_tools() -> None:
    """`make demo` installs the examples' imports, with a progress bar."""
    assert installed("demo") == ["--progress-bar on -e '.[examples]'"]


def test_make_quick_installs_no_torch() -> None:
    assert [words.removeprefix("-q ") for words in installed("quick")] == [
        "pip",
        "-e . --group quick",
    ]


def test_make_test_extends_existing_virtual_environment() -> None:
    """`make test` adds the test tools to the environment of `make quick` and `make demo`."""
    assert len({line for line in commands("test").split("\n") if "-m venv" in line}) == 1
    steps = installed("test")
    assert steps[:3] == [*installed("quick"), *installed("demo")]
    assert [words.split("--group ")[1] for words in steps[3:]] == ["test"]


def test_make_test_checks_format_and_types_once() -> None:
    assert all(commands("test").count(tool) == 1 for tool in ("ruff format", "ruff check", "/mypy"))
