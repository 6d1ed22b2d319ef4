"""A worker forked from a process with preloaded modules can't detect that it isn't cold."""

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIRST_WARM, LIMIT_S, Launch, clean_environment, long

PROBE = Path(__file__).with_name("probe.py")
MODULES = (
    "atexit,ctypes,decimal,json,locale,logging,multiprocessing,multiprocessing.process,random,"
    "resource,tempfile,threading,traceback,warnings"
)
Script = Callable[[str], Path]
Seen = dict[str, object]


def is_warm(events: str) -> bool:
    return '"event": "WorkersForked", "warm": true' in events


def observations(tmp_path: Path, run: Callable[[str], None], ranks: int = 2) -> list[list[Seen]]:
    """Return each rank's observations, cold and warm."""
    found = []
    for preload in ("off", MODULES):
        run(preload)
        found.append([json.loads((tmp_path / f"result{r}").read_text()) for r in range(ranks)])
        for rank in range(ranks):
            (tmp_path / f"result{rank}").unlink()
    return found


def compare(cold: list[Seen], warm: list[Seen]) -> None:
    for one, other in zip(cold, warm, strict=True):
        a, b = one["seen"], other["seen"]
        assert isinstance(a, dict) and isinstance(b, dict)
        differences = [
            f"{name}: cold {a[name]!r}, warm {b.get(name)!r}"
            for name in a
            if a[name] != b.get(name)
        ]
        assert not differences, "\n".join(differences)
        assert len(a) >= 40


@pytest.mark.parametrize("form", ["file", long("module"), "relative import", long("directory"),
                                  "safe path", "launch", "dev mode", long("C locale"),
                                  "pythonpath"])  # fmt: skip
def test_script_sees_same_process_state_cold_and_warm(
    form: str, launch: Launch, tmp_path: Path
) -> None:
    """More than 40 observations of a process are equal for each way to name the script."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "value.py").write_text("value = 1\n")
    shutil.copy(PROBE, package / "probe.py")
    (package / "relative.py").write_text("from .value import value\n" + PROBE.read_text())
    (package / "__main__.py").write_text(PROBE.read_text())
    arguments = {
        "file": ["package/probe.py", "a", "", "é", "-x"],
        "module": ["-m", "package.probe", "a", "b c"],
        "relative import": ["-m", "package.relative"],
        "directory": ["package"],
        "safe path": ["package/probe.py"],
        "launch": ["package/probe.py", "--local"],
        "dev mode": ["package/probe.py"],
        "C locale": ["package/probe.py"],
        "pythonpath": ["package/probe.py"],
    }[form]
    variables = {
        "safe path": {"PYTHONSAFEPATH": "1"},
        "dev mode": {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "ignore::ImportWarning"},
        "C locale": {"LC_ALL": "C"},
        "pythonpath": {
            "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path)])
        },
    }.get(form, {})
    command = "launch" if form == "launch" else "run"

    def run(preload: str) -> None:
        result = launch(
            command, f"--preload={preload}", "--nproc-per-node=2", "-v", *arguments,
            RESULT=str(tmp_path / "result"), RANK="7", LOCAL_RANK="stale", **variables,
            stdin="line\n",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert ("workers start with preloaded modules" in result.stderr) == (preload != "off"), (
            result.stderr
        )

    compare(*observations(tmp_path, run))


def test_script_on_terminal_sees_same_process_state_cold_and_warm(tmp_path: Path) -> None:
    """The streams are terminals in both cases."""

    def run(preload: str) -> None:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*FIRST_WARM, "run", f"--preload={preload}", PROBE],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True,
            env=clean_environment(RESULT=str(tmp_path / "result")),
        )  # fmt: skip
        os.close(theirs)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass  # all of them have exited
        assert process.wait(LIMIT_S) == 0
        os.close(ours)

    compare(*observations(tmp_path, run, ranks=1))


def test_warm_workers_do_not_share_random_state(launch: Launch, tmp_path: Path) -> None:
    """Workers in one generation draw different numbers, names, and keys."""
    variables = {"RESULT": str(tmp_path / "result")}
    result = launch("run", f"--preload={MODULES}", "--nproc-per-node=2", PROBE, **variables)
    assert result.returncode == 0, result.stderr
    a, b = (json.loads((tmp_path / f"result{rank}").read_text())["drawn"] for rank in range(2))
    assert not {name for name in a if a[name] == b[name]}
