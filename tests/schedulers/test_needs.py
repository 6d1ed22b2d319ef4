"""Before submission, a job's resources are compared with its workers' needs."""

import shlex
from pathlib import Path

import pytest

from relight.runner.runner import Runner


def notes(line: str) -> list[str]:
    with Runner() as runner:
        scheduler, *words = shlex.split(line)
        return list(runner.dryrun(words[0], words[1:], scheduler=scheduler).notes)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "RELIGHT_STATE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'gpu* 64000+ gpu:a100:8(S:0-1)'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


LITTLE = (
    "train: 1024 MiB and 2 CPUs per node may be too little for 8 workers; use --memMB 16384 "
    "--cpu 8, or -h NAME for a whole machine"
)
NO_GPU = (
    "train: no GPU requested, but the default partition has GPUs (gpu:a100:8); use --gpu 8, or "
    "-h NAME for a whole machine"
)
LITTLE_AND_NO_GPU = (
    "train: 1024 MiB, 2 CPUs and no GPU per node may be too little for 8 workers; use --memMB "
    "16384 --cpu 8 --gpu 8, or -h NAME for a whole machine"
)


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-j 2x8", [LITTLE_AND_NO_GPU]),
        ("-j 2x8 --cpu 8 --memMB 16384", []),
        ("-j 2x8 -h gpu.xlarge", []),
    ],
)
def test_missing_gpus_are_noted_with_other_missing_resources(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever chooses CPUs and memory may train without GPUs."""
    monkeypatch.setenv("KUBECONFIG", "none")
    assert notes(f"kubernetes dist.ddp {words} --script train.py --image i") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("slurm dist.ddp -j 2x8 --script train.py", [LITTLE, NO_GPU]),
        ("slurm dist.ddp -j 2x8 -h gpu.xlarge --script train.py", []),
        ("slurm utils.echo", []),
        ("docker dist.ddp -j 2x8 --script train.py --image i", [LITTLE]),
        ("docker dist.ddp -j 1x8 --script train.py --image i --cpu 8 --memMB 16384", []),
        ("local dist.ddp -j 2x8 --script train.py", []),
    ],
)
def test_insufficient_local_resources_cause_a_note(line: str, expected: list[str]) -> None:
    """Too little memory, too few CPUs and missing GPUs each print a note with a remedy. Unknown
    numbers print none.
    """
    assert notes(line) == expected
