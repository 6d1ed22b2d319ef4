"""`relight shim` replaces torchrun with relight in one environment, and restores it."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, clean_environment


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that contains neither relight nor torch."""
    folder = tmp_path / "an env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def run(*command: "str | Path") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def test_torchrun_starts_relight_while_shim_is_installed(
    environment: Path, tmp_path: Path, launch: Launch
) -> None:
    before = files(environment)
    script = tmp_path / "w.py"
    script.write_text("import os, sys; print(os.environ['RANK'], sys.executable)")
    venv = f"--venv={environment.relative_to(tmp_path)}"  # for a relative path
    assert launch("shim", "status", venv).returncode == 1
    assert launch("shim", "install", venv).returncode == 0
    assert launch("shim", "install", venv).returncode == 0
    assert launch("shim", "status", venv).stdout == f"{environment}: torchrun starts this relight\n"
    python = environment / "bin/python"
    for command in ([environment / "bin/torchrun"], [python, "-I", "-m", "torch.distributed.run"]):
        done = run(*command, script)
        assert done.stdout == f"0 {python}\n", done.stderr
    assert launch("shim", "remove", venv).returncode == 0
    assert launch("shim", "remove", venv).returncode == 0
    assert files(environment) == before
    assert "No module named 'torch'" in run(python, "-m", "torch.distributed.run").stderr


def test_torchrun_script_from_torch_is_not_modified(environment: Path, launch: Launch) -> None:
    torchrun = environment / "bin/torchrun"
    begin = f"#!/bin/sh\n'''exec' '{environment}/bin/python' \"$0\" \"$@\"\n' '''\n"  # pip's
    text = f"{begin}from torch.distributed.run import main\nmain()\n"
    torchrun.write_text(text)
    torchrun.chmod(0o755)
    launch("shim", "install", f"--venv={environment}")
    assert "usage: relight run" in run(torchrun, "--help").stdout
    launch("shim", "remove", f"--venv={environment}")
    assert torchrun.read_text() == text


def test_shim_does_nothing_after_relight_is_removed(environment: Path, launch: Launch) -> None:
    launch("shim", "install", f"--venv={environment}")
    (hook,) = environment.rglob("relight_shim.pth")
    hook.write_text(hook.read_text().replace("relight/torch_launcher/shim/site", "relight/gone"))
    done = run(environment / "bin/python", "-c", "print('ok')")
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_install_prints_the_command_that_removes_the_shim(
    environment: Path, launch: Launch
) -> None:
    before = files(environment)
    said = launch("shim", "install", "--venv", environment).stderr
    undo = said.rstrip().partition("undo with relight ")[2]
    assert launch(*shlex.split(undo)).returncode == 0
    assert files(environment) == before


def test_shim_command_defaults_to_active_environment(environment: Path, launch: Launch) -> None:
    done = launch("shim", "status", VIRTUAL_ENV=str(environment))
    assert done.stdout == f"{environment}: not installed\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("instal",), "did you mean install?"),
        (("status", "--venv=/nowhere"), "/nowhere is not a Python environment"),
        ((), "relight shim needs one of install, remove, status"),
    ],
)
def test_invalid_arguments_are_rejected(words: tuple[str, ...], said: str, launch: Launch) -> None:
    done = launch("shim", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> "Callable[[list[str]], list[str] | None]":
    monkeypatch.syspath_prepend(
        str(Path(__file__).parents[2] / "src/relight/torch_launcher/shim/site")
    )
    import relight_hook  # type: ignore[import-not-found]

    found: Callable[[list[str]], list[str] | None] = relight_hook.command
    return found


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        ("python -m torch.distributed.run a.py", "python -P -m relight run a.py"),
        ("python -um torch.distributed.run a.py", "python -u -P -m relight run a.py"),
        ("python -W error -X dev -mtorch.distributed.run",
         "python -W error -X dev -P -m relight run"),
        ("python -W -m torch.distributed.run", None),
        ("python --check-hash-based-pycs always -m torch.distributed.launch -m x",
         "python --check-hash-based-pycs always -P -m relight launch -m x"),
        ("python /x/torch/distributed/launch.py a.py", "python -P -m relight launch a.py"),
        ("python /x/run.py a.py", None),
        ("python train.py -m torch.distributed.run", None),
        ("python -c pass -m torch.distributed.run", None),
        ("python -m torch.distributed.run_it", None),
        ("python -", None),
        ("python", None),
        ("python -m", None),
    ],
)  # fmt: skip
def test_python_command_lines_that_start_torchrun_are_rewritten(
    command: "Callable[[list[str]], list[str] | None]", words: str, becomes: str | None
) -> None:
    assert command(words.split()) == (becomes.split() if becomes else None)
