"""relight installed in a different environment from torch: workers run the user's Python."""

import errno
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LIMIT_S, clean_environment

import relight
from relight.agent import postmortem
from relight.base.env import Environment
from relight.core.failure import ErrorReport, Failure, FailureKind, WorkerState
from relight.host.loop import Loop
from relight.processes import interpreter
from relight.stacks import exit_evidence

SOURCES = str(Path(relight.__file__).resolve().parent.parent)
SAY = "import sys, torch; print(sys.prefix, torch.__file__)"
PROGRAM = f"""
import sys
from relight.processes import interpreter
interpreter._POLL_S = {LIMIT_S}
from relight.cli.main import entry
sys.exit(entry())
"""
"""Relight that queries another Python however long that takes on a busy machine."""


class Machine:
    """Virtual environments: `tool` has relight, `mine` and `other` torch, and `bare` nothing."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("tool", "mine", "other", "bare"):
            venv.create(place / name, symlinks=True)
        (self._packages("tool") / "relight.pth").write_text(SOURCES)
        for name in ("mine", "other"):
            self.give_torch(name)
        program = place / "tool" / "bin" / "relight"
        program.write_text(f"#!{program.parent}/python\n{PROGRAM}")
        program.chmod(0o755)
        (place / "train.py").write_text(SAY)

    def _packages(self, name: str) -> Path:
        (found,) = (self.place / name / "lib").glob("python3*/site-packages")
        return found

    def give_torch(self, name: str) -> None:
        (self._packages(name) / "torch").mkdir()
        (self._packages(name) / "torch" / "__init__.py").write_text("")

    def run(
        self,
        *flags: str,
        path: str = "",
        command: tuple[str, ...] = ("{tool}/bin/relight",),
        **variables: str,
    ) -> "subprocess.CompletedProcess[str]":
        """Run train.py; replace `{mine}` and the like with the paths of environments."""
        names = {each.name: str(each) for each in self.place.iterdir()}
        environment = clean_environment(**{k: v.format(**names) for k, v in variables.items()})
        for name in {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC", "PYTHONPATH"} - set(variables):
            environment.pop(name, None)
        environment["PATH"] = path.format(**names) + ":/usr/bin:/bin"
        return subprocess.run(
            [*(word.format(**names) for word in command), "run", *flags, "train.py"],
            env=environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def where(self, *flags: str, **variables: str) -> str:
        """Return the name of the environment whose Python ran the worker."""
        done = self.run(*flags, **variables)
        assert done.returncode == 0, done.stderr
        prefix, torch = done.stdout.split()
        assert torch.startswith(prefix)
        return Path(prefix).name


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize(
    ("variables", "path", "expected"),
    [
        ({"VIRTUAL_ENV": "{mine}"}, "", "mine"),
        ({"CONDA_PREFIX": "{mine}"}, "", "mine"),
        ({"VIRTUAL_ENV": "{mine}", "CONDA_PREFIX": "{other}"}, "", "mine"),
        (
            {"VIRTUAL_ENV": "{mine}", "CONDA_PREFIX": "{other}"},
            "{other}/bin:{mine}/bin",
            "other",
        ),
        ({"VIRTUAL_ENV": "{mine}", "PYTHON_EXEC": "{other}/bin/python"}, "", "other"),
        ({"VIRTUAL_ENV": "/gone", "CONDA_PREFIX": "{mine}"}, "", "mine"),
    ],
)
def test_workers_run_python_from_python_exec_or_active_environment(
    machine: Machine, variables: Mapping[str, str], path: str, expected: str
) -> None:
    """PYTHON_EXEC comes first, then the active environment; of two, the first one on PATH wins."""
    assert machine.where(path=path, **variables) == expected


def test_warm_workers_run_same_python_as_cold_workers(machine: Machine) -> None:
    """With --preload, the same Python is used for importing and forking."""
    assert machine.where("--preload=json", VIRTUAL_ENV="{mine}") == "mine"


def test_verbose_output_names_python_used_by_workers(machine: Machine) -> None:
    """-v also shows where it was found; without -v, nothing is printed."""
    place = machine.place
    done = machine.run("-v", VIRTUAL_ENV="{mine}")
    note = f"note: workers run {place}/mine/bin/python (from the active environment)"
    assert note in done.stderr
    assert "note" not in machine.run(VIRTUAL_ENV="{mine}").stderr


def test_relight_installed_next_to_torch_uses_its_own_python(tmp_path: Path) -> None:
    """As under torchrun, the active environment doesn't matter, even with `python -m relight`."""
    machine = Machine(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print(sys.prefix)")
    named = ("{tool}/bin/python", "-m", "relight")
    done = machine.run(command=named, VIRTUAL_ENV="{mine}")
    assert done.stdout.strip() == str(tmp_path / "tool")
    machine.give_torch("tool")
    done = machine.run("-v", VIRTUAL_ENV="{mine}")
    assert done.stdout.strip() == str(tmp_path / "tool")
    assert "workers run relight's own Python, not that of" in done.stderr


def test_missing_module_report_names_python_used_by_workers(machine: Machine) -> None:
    """The report explains how to choose another Python, unless the shell's lacks the module too."""
    place = machine.place
    done = machine.run(path="{mine}/bin")
    assert "No module named 'torch'" in done.stderr
    has_it = f"{place}/mine/bin/python has it, so activate its environment, or set PYTHON_EXEC"
    assert f"  workers ran {place}/tool/bin/python; {has_it}\n" in done.stderr
    done = machine.run(path="{bare}/bin", VIRTUAL_ENV="{bare}")
    assert "No module named 'torch'" in done.stderr
    assert "PYTHON_EXEC" not in done.stderr


def test_module_in_current_directory_is_not_attributed_to_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only installed modules count; `python -c` searches the current directory as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreter, "_POLL_S", LIMIT_S)
    (tmp_path / "ours.py").touch()
    (tmp_path / "python").symlink_to(sys.executable)
    loop = Loop()
    try:
        hint = interpreter.remedy(
            "/tool/bin/python", Environment({"PATH": str(tmp_path)}), "ours", loop
        )
    finally:
        loop.close()
    assert hint == "workers ran /tool/bin/python"


def test_launched_function_runs_in_interpreter_of_caller(machine: Machine) -> None:
    """The active environment doesn't matter."""
    text = "import relight, sysconfig; print(*relight.launch(sysconfig.get_path, 'data'))"
    done = subprocess.run(
        [machine.place / "tool" / "bin" / "python", "-c", text],
        env=clean_environment(VIRTUAL_ENV=str(machine.place / "mine")),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.strip() == str(machine.place / "tool"), done.stderr


def test_node_stays_responsive_while_another_python_is_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other Python waits here for a file that the loop creates."""
    monkeypatch.setattr(interpreter, "_POLL_S", LIMIT_S)
    go, python = tmp_path / "go", tmp_path / "python"
    python.write_text(f"#!/bin/sh\nwhile ! [ -e {go} ]; do sleep 0.01; done\n")
    python.chmod(0o755)
    variables = Environment({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    loop = Loop()
    loop.call_after(0.01, go.touch)
    try:
        hint = interpreter.remedy("/tool/bin/python", variables, "torch", loop)
    finally:
        loop.close()
    assert hint.startswith(f"workers ran /tool/bin/python; {python} has it, so ")


def test_python_used_by_workers_is_queried_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def remedy(python: str, env: Environment, module: str, loop: Loop) -> str:
        del python, env, loop
        asked.append(module)
        return f"who has {module}?"

    monkeypatch.setattr(interpreter, "remedy", remedy)
    lines = ("ModuleNotFoundError: No module named 'torch'",)
    report = ErrorReport(FailureKind.RAISED, *lines[0].split(": "), "", "", lines)
    failures = [
        Failure(rank, rank, "vm", 1, 1, 0.0, 0, report, lines, known, "")
        for rank, known in enumerate(("", "", "the disk is full"))
    ]
    monkeypatch.setattr(exit_evidence, "unsearched_folder", lambda *_: "")
    lived = failures[0]._replace(exitcode=-15, stop_signal=15)
    handled = failures[0]._replace(report=report._replace(kind=FailureKind.PRINTED))
    command: Any = SimpleNamespace(python="python", env=Environment({}), no_python=False)
    loop = Loop()
    try:
        found = postmortem._with_remedies([*failures, lived, handled], command, loop)
    finally:
        loop.close()
    assert [each.evidence for each in found] == [
        "who has torch?", "who has torch?", "the disk is full", "", "",
    ]  # fmt: skip
    assert asked == ["torch"]


@pytest.mark.parametrize("served", ["True", "False"])
def test_report_suggests_flag_if_script_uses_another_master_port(served: str) -> None:
    """Before torch 2.14, a script that sets MASTER_PORT waits for a store that nobody serves."""
    message = "timed out after 10000ms while trying to connect to (localhost, 12355)."
    error = f"torch.distributed.DistNetworkError: {message}"
    lines = ('  File "train.py", line 9, in main', '    dist.init_process_group("gloo")', error)
    report = ErrorReport(FailureKind.RAISED, *error.split(": ", 1), "", "", lines)
    failure = Failure(0, 0, "vm", 1, 1, 0.0, 0, report, lines, "", "")
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "3", "TORCHELASTIC_USE_AGENT_STORE": served}
    logs: Any = SimpleNamespace()
    evidence = postmortem.with_address(failure, own, logs).evidence
    assert evidence.startswith("relight had set MASTER_ADDR=127.0.0.1 and MASTER_PORT=3")
    assert ("--worker-store=rank0" in evidence) == (served == "True")
    same = {**own, "MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
    assert postmortem.with_address(failure, same, logs) == failure
    at_other_host = {**own, "MASTER_PORT": "12355"}
    assert "--worker-store" not in postmortem.with_address(failure, at_other_host, logs).evidence
    unseen = failure._replace(report=None, last_lines=lines[-1:])
    assert postmortem.with_address(unseen, own, logs).evidence == evidence
    side_store = failure._replace(report=report._replace(lines=lines[-1:]))
    assert postmortem.with_address(side_store, own, logs).evidence == (
        "the process group uses another store, at 127.0.0.1:3"
    )


def test_stopped_rank_that_retries_at_another_address_is_reported() -> None:
    """Torch logs the attempts of a rank that is still in init_process_group."""
    attempt = "[W] [c10d] The client socket has timed out after 5000ms while trying to connect to"
    logs: Any = SimpleNamespace(
        stderr_of=lambda _: f"{attempt} (10.1.2.3, 29500).\n", printed=lambda _: None
    )
    joins = WorkerState(" in main (a.py:9)", ('File "x.py", line 2, in init_process_group',), True)
    failure = Failure(1, 1, "vm", 1, -15, 0.0, 15, None, (), "", "", doing=joins)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "3"}
    assert postmortem.with_address(failure, told, logs).evidence == (
        "it was trying to connect to 10.1.2.3:29500; "
        "relight had set MASTER_ADDR=127.0.0.1 and MASTER_PORT=3"
    )
    same = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}
    assert postmortem.with_address(failure, same, logs) == failure


def test_failure_to_start_worker_suggests_checking_process_limit() -> None:
    evidence = f"the program could not be started: {os.strerror(errno.EAGAIN)}"
    command: Any = SimpleNamespace()
    assert postmortem._explain_start_failure(evidence, command).startswith(
        f"{evidence} (check `ulimit -u` and"
    )
