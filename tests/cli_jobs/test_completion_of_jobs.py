"""The shells offer this machine's jobs wherever a command expects one."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S

from .conftest import Command
from .test_completion import shell

OFFERED = {"train", "train-11", "eval.b", "eval.b-12", "sent", "sent-x3bk9qwz"}
LINES = {
    "relight status ": OFFERED,
    "relight logs -f tra": {"train", "train-11"},
    "relight delete train sen": {"sent", "sent-x3bk9qwz"},
    "relight logs --role ": set[str](),
}
BASH = """
source <(relight completion bash)
for line; do
    read -ra COMP_WORDS <<< "$line"; [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _relight; echo "=$line"; printf '%s\\n' "${COMPREPLY[@]}"
done
"""
FISH = "relight completion fish | source; for line in $argv; echo =$line; complete -C $line; end"


@pytest.fixture
def jobs(tmp_path: Path, variables: dict[str, str]) -> dict[str, str]:
    """Return a user's environment with a running job, one that has ended and a submitted one.

    Two more have names that no relight job can have.
    """
    run, submitted = tmp_path / "runtime/relight/jobs", tmp_path / "state/jobs"
    run.mkdir(mode=0o700, parents=True)
    run.parent.chmod(0o700)
    for name in ("train-11.sock", "eval.b-12.json", "$(touch broken)-13.json"):
        (run / name).touch()
    for name in ("sent-x3bk9qwz", "`touch broken`"):
        (submitted / name).mkdir(parents=True)
        (submitted / name / "job.json").touch()
    (submitted / "no-record").mkdir()
    program = tmp_path / "bin/relight"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m relight "$@"\n')
    program.chmod(0o755)
    return {**variables, "PATH": f"{program.parent}:/usr/bin:/bin"}


@pytest.mark.parametrize(("name", "words"), [("bash", ("-uc", BASH, "bash")),
                                             ("fish", ("--no-config", "-c", FISH))])  # fmt: skip
def test_completion_offers_job_names_and_ids(
    jobs: dict[str, str], place: Path, name: str, words: tuple[str, ...]
) -> None:
    """Jobs aren't offered where a flag expects a different value. Names that a shell would execute
    are omitted.
    """
    found = subprocess.run(
        [shell(name), *words, *LINES], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        cwd=place, env=jobs,
    )  # fmt: skip
    assert found.stderr == ""
    offered: dict[str, set[str]] = {}
    for line in found.stdout.splitlines():
        if line.startswith("="):
            last = offered[line[1:]] = set()
        elif line:
            last.add(line.partition("\t")[0])
    assert offered == LINES
    assert not [*place.iterdir()]


def test_job_completion_prints_nothing_without_jobs_or_runtime_directory(
    relight: Command, tmp_path: Path
) -> None:
    for _ in range(2):
        found = relight("completion", "jobs")
        assert (found.returncode, found.stdout.strip(), found.stderr) == (0, "", "")
        runtime = tmp_path / "runtime/relight"
        if runtime.is_dir():
            (runtime / "jobs").rmdir()
            runtime.rmdir()
        runtime.touch()
        (tmp_path / "state").touch()


def test_job_completion_imports_no_scheduler_modules() -> None:
    say = "import sys; main(['completion', 'jobs']); print(*sys.modules, file=sys.stderr)"
    found = subprocess.run(
        [sys.executable, "-c", f"from relight.cli.main import main; {say}"],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    loaded = set(found.stderr.split())
    assert "relight.cli.jobs.known_jobs" in loaded
    for name in ("relight.cli.completion", "relight.schedulers.registry", "relight.runner.runner"):
        assert name not in loaded
