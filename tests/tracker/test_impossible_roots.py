"""If a tracker's directory can't be used, the error names it, the reason, and a remedy."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import MachineError, UsageError
from relight.cli.jobs import tracker as command
from relight.tracker import backends
from relight.tracker.file_system import FileSystemTracker

pytestmark = pytest.mark.needs_fsspec
HINT = "root_path in the tracker's configuration"
CALLS = (
    lambda tracker: tracker.add_metadata("run", lr=0.1),
    lambda tracker: tracker.add_artifact("run", "model", "/m"),
    lambda tracker: tracker.add_source("run", "parent"),
    lambda tracker: tracker.metadata("run"),
    lambda tracker: tracker.artifacts("run"),
    lambda tracker: tracker.sources("run"),
    lambda tracker: tracker.run_ids(),
)


def config_of(root: Path, directory: Path) -> str:
    path = directory / "tracker.conf"
    path.write_text(f"protocol = file\nroot_path = {root}\n")
    return str(path)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["file", "file/below"])
def test_one_error_names_invalid_tracker_root_directory(
    tmp_path: Path, name: str, call: Any
) -> None:
    (tmp_path / "file").touch()
    tracker = backends.load("fsspec", config_of(tmp_path / name, tmp_path))
    with pytest.raises(MachineError, match="Not a directory") as caught:
        call(tracker)
    assert caught.value.message.startswith(f"tracker root {tmp_path / name} can't be ")
    assert HINT in caught.value.hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "a usable directory"),
        (errno.EROFS, HINT),
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
    ],
)
def test_file_system_error_suggests_remedy(number: int, hint: str) -> None:
    import fsspec

    class Files(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise OSError(number, os.strerror(number), f"{path}\x1b[2J")

    with pytest.raises(MachineError, match=os.strerror(number)) as caught:
        FileSystemTracker(Files(), "/runs").add_metadata("run", lr=0.1)
    assert "tracker root /runs can't be written" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert hint in caught.value.hint


def test_missing_tracker_directory_contains_no_runs(tmp_path: Path) -> None:
    """The directory is created when the first value is recorded."""
    tracker = backends.load("fsspec", config_of(tmp_path / "a/b", tmp_path))
    assert (tracker.run_ids(), tracker.metadata("run"), tracker.sources("run")) == ([], {}, [])
    tracker.add_metadata("run", lr=0.1)
    assert tracker.metadata("run") == {"lr": 0.1}


def test_unknown_artifact_error_lists_existing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path / "runs", tmp_path)
    backends.load("fsspec", config).add_artifact("run", "model", "/m")
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv("TORCHX_TRACKER_FSSPEC_CONFIG", config)
    monkeypatch.chdir(tmp_path)
    for name, hint in (("modle", "did you mean model?"), ("x", "it has model")):
        with pytest.raises(UsageError, match=f"run has no artifact {name}") as caught:
            command.main(["list", "artifacts", "run", "--artifact", name])
        assert caught.value.hint == hint
