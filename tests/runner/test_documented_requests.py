"""The requests sent to each scheduler are those shown in the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment

FOLDER = Path(__file__).parents[2] / "docs" / "clusters" / "dryrun"
COMMANDS = {
    "local": "-s local dist.ddp -j 1x4 --script train.py",
    "ssh": "-s ssh -cfg hosts=node1;node2 dist.ddp -j 2x8 --script train.py",
    "docker": "-s docker dist.ddp -j 2x8 -h gpu.medium --image pytorch/pytorch --script train.py",
    "slurm": "-s slurm -cfg partition=gpu dist.ddp -j 2:4x8 -h gpu.medium --script train.py",
    "kubernetes": "-s kubernetes -cfg queue=default "
    "dist.ddp -j 2:5x8 -h gpu.medium --image pytorch/pytorch --script /data/train.py",
    "aws_batch": "-s aws_batch -cfg queue=gpu,launcher_uri=s3://bucket/relight "
    "dist.ddp -j 2x8 -h aws_p4d.24xlarge --image pytorch/pytorch --script /data/train.py",
    "ray": "-s ray -cfg dashboard_address=head:8265 dist.ddp -j 2:5x8 --script /data/train.py",
}
SUFFIXES = {"kubernetes": "yaml", "aws_batch": "json", "ray": "txt"}


def requested(name: str, place: Path) -> str:
    """Return what --dryrun prints for a command, without what varies between runs or machines."""
    command = ["submit", "--dryrun", *COMMANDS[name].split()]
    project = place / "project"
    project.mkdir()
    (project / "train.py").touch()
    result = subprocess.run(
        [sys.executable, "-m", "relight", *command],
        env=clean_environment(HOME=str(place), USER="me", LOGNAME="me", PATH="/usr/bin:/bin"),
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    text = result.stdout
    for pattern, replacement in (
        (re.escape(str(place)), "/home/me"),
        (re.escape(os.path.dirname(sys.executable)), "/home/me/env/bin"),
        (re.escape(sys.executable), "/home/me/env/bin/python"),
        (r"\btrain-[a-z0-9]{11,14}\b", "train-x7abc"),
        (r"\b[0-9a-f]{32}\b", "0123456789abcdef"),
        (r"(?m)^(\s+relight\S*: )[A-Za-z0-9+/=]{1000,}$", r"\1(the launcher in base64)"),
        (r"\b(relight-launcher-|relight/launcher: )[0-9a-f]{12}\b", r"\g<1>0123456789ab"),
        (r"(relight/version[:=] ?)\S+", r"\1VERSION"),
        (r"(relight/user[:=] ?)\S+", r"\1me"),
        (r'("relight/version": )"[^"]*"', r'\1"VERSION"'),
        (r'("relight/user": )"[^"]*"', r'\1"me"'),
    ):
        text = re.sub(pattern, replacement, text)
    head = "" if name == "aws_batch" else f"# relight submit --dryrun {COMMANDS[name]}\n"
    return head + text


@pytest.mark.parametrize("name", COMMANDS)
def test_documented_request_is_up_to_date(name: str, tmp_path: Path) -> None:
    """REWRITE_DOCS=1 rewrites the documents."""
    path = FOLDER / f"{name}.{SUFFIXES.get(name, 'sh')}"
    text = requested(name, tmp_path)
    if "REWRITE_DOCS" in os.environ:
        path.write_text(text)
    assert path.read_text() == text
    page = FOLDER.parent / f"{name.replace('_', '-')}.md"
    assert f"dryrun/{path.name}" in page.read_text(), f"{page} does not refer to it"


@pytest.mark.parametrize("name", COMMANDS)
def test_scheduler_page_has_required_sections(name: str) -> None:
    page = (FOLDER.parent / f"{name.replace('_', '-')}.md").read_text()
    heads = [line for line in page.splitlines() if line.startswith("## ")]
    assert heads[:3] == ["## Requirements", "## The command", "## Resources it creates"]
    assert "## Failures and diagnosis" in heads
    command = page.partition("## The command")[2].partition("## Resources it creates")[0]
    assert f"relight submit {'' if name == 'local' else f'-s {name}'}" in command
