"""`relight completion`: the shells' own completions at the end of a line."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S

from .conftest import Command


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here")
    return path


COMPLETED = [
    ("relight sub", "submit"),
    ("relight ", "submit run doctor completion"),
    ("relight submit --dry", "--dryrun"),
    ("relight submit --launcher=relight --wa", "--wait"),
    ("relight submit utils.e", "utils.echo"),
    ("relight submit -s sl", "slurm"),
    ("relight submit --scheduler a", "auto"),
    ("relight submit -cfg det", "detach="),
    ("relight submit -s slurm -cfg ", "partition= time="),
    ("relight submit -s slurm -cfg time=60,part", "time=60,partition="),
    ("relight logs --fol", "--follow"),
    ("relight wait --time", "--timeout"),
    ("relight components dist.", "dist.ddp dist.spmd dist.torchrun"),
    ("relight schedulers lo", "local"),
    ("relight completion f", "fish"),
    ("relight run --nproc", "--nproc-per-node"),
]


@pytest.fixture
def completion(here: Command, tmp_path: Path) -> Path:
    """Write the file that bash reads."""
    path = tmp_path / "relight.bash"
    path.write_text(here("completion", "bash").stdout)
    return path


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_bash_completes_commands_flags_and_values(
    completion: Path, line: str, expected: str
) -> None:
    script = (
        f'source {completion}; COMP_LINE=$1; read -ra COMP_WORDS <<< "$1"; '
        '[[ $1 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
        "COMP_POINT=${#1}; complete -p relight > /dev/null && _relight; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        ["bash", "-euc", script, "bash", line], capture_output=True, text=True, timeout=LIMIT_S,
        check=True,
    )  # fmt: skip
    assert found.stderr == ""
    assert set(expected.split()) <= set(found.stdout.split())
    word = line.rpartition(" ")[2]
    assert all(each.startswith(word) for each in found.stdout.split())


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_fish_completes_commands_flags_and_values(
    here: Command, tmp_path: Path, line: str, expected: str
) -> None:
    """Fish doesn't offer files along with commands."""
    path = tmp_path / "relight.fish"
    path.write_text(here("completion", "fish").stdout)
    (tmp_path / "file").touch()
    script = f"source {path}; complete -C {line!r}"
    found = subprocess.run(
        [shell("fish"), "--no-config", "-c", script], capture_output=True, text=True,
        timeout=LIMIT_S, check=True, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert found.stderr == ""
    offered = {each.partition("\t")[0] for each in found.stdout.splitlines()}
    assert set(expected.split()) <= offered
    assert line != "relight " or "file" not in offered


def test_zsh_completes_commands_flags_and_values(here: Command, tmp_path: Path) -> None:
    """The completions appear on a terminal when TAB is pressed."""
    path = tmp_path / "relight.zsh"
    path.write_text(here("completion", "zsh").stdout)
    command, own = [shell("zsh"), "-f", "-i"], {"HOME": str(tmp_path), "TERM": "dumb"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, **own})
    try:
        begin = f"PROMPT=; autoload -Uz compinit; compinit -u -D; source {path}; print RE''ADY\n"
        os.write(terminal, begin.encode())
        _until(terminal, "READY")
        for line, expected in COMPLETED:
            os.write(terminal, f"{line}\t".encode())
            _until(terminal, *expected.split())
            os.write(terminal, b"\x15print RE''ADY\n")  # ctrl-U removes the line
            _until(terminal, "READY\r\n")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


def _until(terminal: int, *words: str) -> None:
    """Read until all of these words have been shown."""
    shown, end = "", time.monotonic() + LIMIT_S
    while not all(word in shown for word in words):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"{words} not in {shown!r}"
        shown += os.read(terminal, 65536).decode()


def test_bash_and_fish_complete_every_flag(here: Command) -> None:
    """Bash and fish know every command's flags."""
    bash, fish = here("completion", "bash").stdout, here("completion", "fish").stdout
    for command in ("wait", "list", "logs"):
        flags = set(re.findall(r"(?<!\S)--[a-z][\w-]*", here(command, "--help").stdout))
        assert flags
        for flag in flags:
            assert f" {flag}" in bash.replace('"', " ")
            assert f"-l {flag[2:]} " in fish


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_file_is_valid_in_every_shell(here: Command, tmp_path: Path, shell: str) -> None:
    """Shells that aren't installed are skipped."""
    found = here("completion", shell)
    assert (found.returncode, found.stderr) == (0, "")
    path = tmp_path / "completion"
    path.write_text(found.stdout)
    if shutil.which(shell):
        subprocess.run([shell, "-n", path], check=True, timeout=LIMIT_S)
    if shell == "fish":
        assert all(line.startswith("complete -c relight ") for line in found.stdout.splitlines())
        plain = found.stdout.replace("\\'", "")
        assert all(line.count("'") % 2 == 0 for line in plain.splitlines())
    if shell == "zsh":
        assert found.stdout.startswith("autoload -U +X bashcompinit && bashcompinit\n")
