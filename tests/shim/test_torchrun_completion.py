"""`torchrun --print-completion`, which torch provides since 2.14."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, clean_environment


def test_bash_completes_torchrun_flags(launch: Launch, tmp_path: Path) -> None:
    script = launch("run", "--print-completion", "bash").stdout
    (tmp_path / "completion").write_text(
        f"{script}\nCOMP_WORDS=(torchrun --nproc-per) COMP_CWORD=1\n_relight_torchrun\n"
        'echo "${COMPREPLY[@]}"; complete -p torchrun\n'
    )
    done = subprocess.run(
        ["bash", "completion"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "--nproc-per-node"
    assert "_relight_torchrun torchrun" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish"])
def test_zsh_tcsh_and_fish_accept_completion_scripts(
    launch: Launch, tmp_path: Path, shell: str
) -> None:
    script = launch("launch", f"--print-completion={shell}").stdout
    assert "use-env" in script and "@" not in script.replace('"${COMPREPLY[@]}"', "")
    if shutil.which(shell):
        begin = "autoload -U compinit && compinit -u\n" if shell == "zsh" else ""  # as in ~/.zshrc
        (tmp_path / "completion").write_text(begin + script)
        subprocess.run([shell, "completion"], cwd=tmp_path, timeout=LIMIT_S, check=True,
                       env=clean_environment(HOME=str(tmp_path)))  # fmt: skip


def test_unknown_shell_is_rejected(launch: Launch) -> None:
    done = launch("run", "--print-completion=csh")
    assert done.returncode == 2
    assert "--print-completion=csh" in done.stderr
