"""Under `relight exec`, whatever would start torchrun starts relight."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, clean_environment

# The spawner takes its name after it has started the first workers.
WORKER = """
import os, sys, time
end = time.monotonic() + 60
by_relight = False
while not by_relight and time.monotonic() < end:
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        by_relight = "worker spawner" in file.read()
print("rank", os.environ["RANK"], by_relight, sys.argv[1:])
"""
FAKE_API = """
class elastic_launch:
    def __init__(self, config, entrypoint):
        raise SystemExit("torch's launcher was called")
"""
CALLER = """
import sys
from torch.distributed.launcher.api import elastic_launch
from relight.torch_launcher import LaunchConfig
config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", run_id="run", max_restarts=0)
print(elastic_launch(config, "sh")("-c", "true"))
"""


def execute(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    (folder / "w.py").write_text(WORKER)
    return subprocess.run(
        [*RELIGHT, "exec", *command], cwd=folder, env=clean_environment(**variables),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["torchrun"], []),
        (["--", "torchrun"], []),
        ([sys.executable, "-m", "torch.distributed.run"], []),
        ([sys.executable, "-Xdev", "-umtorch.distributed.launch"], ["--local-rank=0"]),
        (["sh", "-c", 'torchrun "$@" && :', "sh"], []),
    ],
)
def test_exec_starts_relight_instead_of_torch_launcher(
    tmp_path: Path, command: list[str], arguments: list[str]
) -> None:
    """Torch is not installed, and nothing imports it."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = execute(
        tmp_path, *command, "--nproc-per-node=1", "w.py", "--lr=1", PYTHONPATH=str(tmp_path)
    )
    assert done.stdout == f"rank 0 True {[*arguments, '--lr=1']}\n", done.stderr


def test_torchrun_from_another_environment_uses_its_python(tmp_path: Path) -> None:
    """A script may activate its own environment, whose torchrun then comes first on PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=tmp_path, check=True)
    python = tmp_path / "env/bin/python"
    torchrun = tmp_path / "env/bin/torchrun"
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    (tmp_path / "which.py").write_text("import sys; print(sys.executable)")
    for script in (
        "torchrun which.py",
        ". env/bin/activate; torchrun which.py",
        "export PYTHONPATH=$PWD; torchrun which.py",
        "unset PYTHONPATH; torchrun which.py",
    ):
        done = execute(tmp_path, "bash", "-c", script, PATH=f"/usr/bin:/bin:{tmp_path}/env/bin")
        assert done.stdout == f"{python}\n", done.stderr


def test_relight_replaces_torch_launcher_api_in_program(tmp_path: Path) -> None:
    package = tmp_path / "torch/distributed/launcher"
    package.mkdir(parents=True)
    (package / "api.py").write_text(FAKE_API)
    done = execute(tmp_path, sys.executable, "-c", CALLER, PYTHONPATH=str(tmp_path))
    assert done.stdout == "{0: None, 1: None}\n", done.stderr


def test_shim_does_not_hide_existing_sitecustomize(tmp_path: Path) -> None:
    """The code that loads the hook leaves sys.path unchanged."""
    (tmp_path / "sitecustomize.py").write_text("name = 'mine'")
    show = "import sys; print(sys.modules['sitecustomize'].name, *sys.path, sep='\\n')"
    command = (sys.executable, "-c", show)
    plain = subprocess.run(
        command, env=clean_environment(PYTHONPATH=str(tmp_path)), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert execute(tmp_path, *command, PYTHONPATH=str(tmp_path)).stdout == plain.stdout


def test_exec_keeps_arguments_and_exit_code_of_command(tmp_path: Path) -> None:
    done = execute(tmp_path, "sh", "-c", 'echo "$@"; exit 7', "sh", "--help", "--", "-x")
    assert (done.returncode, done.stdout, done.stderr) == (7, "--help -- -x\n", "")


def test_exec_runs_script_without_shebang_in_shell(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("echo $1\n")
    (tmp_path / "plain.sh").chmod(0o755)
    assert execute(tmp_path, "./plain.sh", "hello").stdout == "hello\n"


def test_exec_rejects_program_for_another_processor(tmp_path: Path) -> None:
    """It is not passed to the shell, which would print its bytes."""
    (tmp_path / "program").write_bytes(b"\x7fELF\x01\x02\x01" + bytes(64))
    (tmp_path / "program").chmod(0o755)
    done = execute(tmp_path, "./program")
    assert done.stderr.endswith("./program was built for another type of processor\n")


def test_exec_names_system_error(tmp_path: Path) -> None:
    program = shutil.copy("/bin/true", tmp_path)
    with open(program, "ab"):
        done = execute(tmp_path, "./true")
    assert done.stderr.endswith("can't run ./true: Text file busy\n")


def test_exec_names_missing_interpreter(tmp_path: Path) -> None:
    (tmp_path / "broken.sh").write_text("#!/no/such/shell\n")
    (tmp_path / "broken.sh").chmod(0o755)
    done = execute(tmp_path, "./broken.sh")
    assert "the first line of ./broken.sh, /no/such/shell, does not exist" in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "relight exec needs a command"),
        (("no-such-program",), "no such program: no-such-program"),
        (("./plain.sh",), "./plain.sh is not executable\nhint: chmod +x ./plain.sh"),
        (("--no-such-flag", "sh"), "no-such-flag"),
    ],
)
def test_invalid_command_is_rejected(tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    (tmp_path / "plain.sh").touch(0o644)
    done = execute(tmp_path, *command)
    assert done.returncode == 2
    assert said in done.stderr
