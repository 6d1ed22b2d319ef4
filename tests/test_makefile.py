"""`make` sets up what is needed, and no more."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.needs_make


def commands(target: str) -> str:
    """What `make target` would run in a fresh clone."""
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


def test_make_demo_installs_what_the_examples_import_and_no_tools() -> None:
    """`make demo` installs what the examples import, with its progress, and no tools."""
    (extras,) = re.findall(r"pip install (.*) -e '\.\[(.*)\]'", commands("demo"))
    assert extras[1] == "examples"
    assert "-q" not in extras[0]


def test_make_test_completes_the_environment_of_make_demo() -> None:
    """`make test` adds the tools to the environment of `make demo`, and makes no other."""
    text = commands("test")
    assert text.count("-m venv") == 1
    assert re.findall(r"-e '\.\[(.*)\]'", text) == ["examples"]
    assert sorted(re.findall(r"--group (\w+)", text)) == ["quick", "test"]


def test_make_quick_installs_no_torch() -> None:
    text = commands("quick")
    assert re.findall(r"--group (\w+)", text) == ["quick"]
    assert "examples" not in text
