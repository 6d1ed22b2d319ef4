"""The token shared by one user's jobs on a cluster: where it is created, and which file is used."""

import os
import stat
import threading
from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.rendezvous import user_token


def found(state: Path, kind: str = "nfs4") -> str:
    """Return the token if the state directory is on this type of file system."""
    mounts = state.parent / f"mounts.{threading.get_ident()}"
    mounts.write_text(f"a / ext4 rw 0 0\nb {state.parent} {kind} rw 0 0\nc /x nfs rw 0 0\n")
    return user_token.find(Environment({"RELIGHT_STATE_DIR": str(state)}), str(mounts))


def test_user_token_is_created_once_on_shared_file_system(tmp_path: Path) -> None:
    """Agents on all nodes create it at the same time."""
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(found(tmp_path / "state"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = tmp_path / "state" / "token"
    assert set(paths) == {str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert len(text.strip()) == 64
    assert found(tmp_path / "state") == str(path) and path.read_text() == text
    assert os.listdir(tmp_path / "state") == ["token"]


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs"])
def test_no_user_token_is_created_on_local_file_system(tmp_path: Path, kind: str) -> None:
    """Other nodes could not read it."""
    assert found(tmp_path / "state", kind) == ""
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("mode", "content", "counts"),
    [
        (0o600, "secret", True),
        (0o640, "secret", False),
        (0o606, "secret", False),
        (0o600, "", False),
    ],
)
def test_token_file_must_be_private(tmp_path: Path, mode: int, content: str, counts: bool) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    assert found(tmp_path, "ext4") == (str(path) if counts else "")


def test_no_user_token_is_created_in_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert found(tmp_path / "state") == ""
