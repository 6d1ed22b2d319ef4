"""Run `relight submit` with HOME and the state directory on a disk that can't be written to."""

import subprocess
from pathlib import Path

from conftest import RELIGHT, Launch

UNSHARE = ("unshare", "--mount", "--map-root-user")
KINDS = ("size=64k", "ro")
"""Mount options for a full disk and a read-only one."""


def submit(
    launch: Launch, words: tuple[str, ...], variables: dict[str, str], folder: Path, kind: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command there."""
    disk = folder / "disk"
    disk.mkdir()
    fill = "head -c 1M /dev/zero >$0/filler 2>/dev/null;" if kind != "ro" else ""
    program = f'mount -t tmpfs -o {kind} none "$0" && {{ {fill} exec "$@"; }}'
    return launch(
        *words, command=(*UNSHARE, "sh", "-c", program, str(disk), *RELIGHT),
        **{**variables, "RELIGHT_STATE_DIR": str(disk), "HOME": str(disk)},
    )  # fmt: skip
