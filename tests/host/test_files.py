"""Files in directories where others may write."""

import json
import os
from pathlib import Path

import pytest

from relight.base.errors import UsageError
from relight.core.diagnosis.failure_text import Failure
from relight.host import files
from relight.output import error_files


def test_replacing_a_file_never_follows_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If someone has placed a link at the file's name, or at its guessed temporary name, it is
    replaced or refused. The link's target is unchanged.
    """
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "error.json"
    path.symlink_to(victim)
    files.replace(str(path), "new")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "urandom", bytes)
    for link in (tmp_path / f".relight-{'0' * 16}", tmp_path / f"error.json.{os.getpid()}"):
        link.symlink_to(victim)
        with pytest.raises(FileExistsError):
            files.replace(str(path), "newer")
        assert (victim.read_text(), path.read_text()) == ("mine", "new")


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a link to /dev/null"])
def test_devices_and_directories_are_never_replaced(kind: str, tmp_path: Path) -> None:
    """A FIFO doesn't block."""
    path = tmp_path / "error.json"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    before = path.lstat()
    with pytest.raises(OSError, match="not a regular file"):
        files.replace(str(path), "new")
    assert path.lstat() == before
    assert [each.name for each in tmp_path.iterdir()] == ["error.json"]


def test_writing_job_error_file_does_not_follow_links(tmp_path: Path) -> None:
    """TORCHELASTIC_ERROR_FILE may be in a shared directory, where another program reads it."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "shared" / "error.json"
    path.parent.mkdir()
    for name in (path.name, f"{path.name}.{os.getpid()}"):
        (path.parent / name).symlink_to(victim)
    failure = Failure(0, 0, "h", 1, 3, 0.0, 0, None, (), "", "")
    error_files.write(str(path), failure, "")
    assert victim.read_text() == "mine"
    assert '"errorCode": 3' in path.read_text()


def test_job_error_file_contains_time_of_failure(tmp_path: Path) -> None:
    """Given several files, torch and TorchX take the earliest as the cause."""
    path = tmp_path / "error.json"
    when = "2026-07-01 12:00:00+0200"
    failure = Failure(0, 0, "h", 1, 3, 0.0, 0, None, (), "", "")._replace(when=when)
    error_files.write(str(path), failure, "")
    assert json.loads(path.read_text())["message"]["extraInfo"]["timestamp"] == "1782900000"


def test_next_directory_name_is_used_if_first_is_taken(tmp_path: Path) -> None:
    """All of a user's processes find the same directory: the first one that belongs to the user."""
    usual, second, third = (
        tmp_path / f"relight-{os.getuid()}{ending}" for ending in ("", "-1", "-2")
    )
    usual.symlink_to(tmp_path)
    second.write_text("")
    for _ in range(2):
        assert files.own_directory(str(tmp_path)) == str(third)
        assert third.stat().st_mode & 0o777 == 0o700
        assert files.why_elsewhere(str(third)).startswith(f"{usual} belongs to another user")
        usual.unlink(missing_ok=True)  # a running job is still found
    third.chmod(0o755)
    assert files.own_directory(str(tmp_path)) == str(third)
    assert files.own_directory(str(tmp_path), 0o077) == str(usual)
    assert files.why_elsewhere(str(usual)) == ""


@pytest.mark.needs_root
def test_directory_owned_by_another_user_is_not_used(tmp_path: Path) -> None:
    for ending in ("", *(f"-{number}" for number in range(1, 10))):
        assert files.own_directory(str(tmp_path)).endswith(f"relight-{os.getuid()}{ending}")
        os.chown(tmp_path / f"relight-{os.getuid()}{ending}", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        files.own_directory(str(tmp_path))


def test_overlong_log_path_is_a_usage_error(tmp_path: Path) -> None:
    """os.makedirs recurses for each component, which used to be an internal error."""
    with pytest.raises(UsageError, match=r"can't write logs to .*: File name too long"):
        files.make_run_directory(str(tmp_path) + "/d" * 3000, "job")
