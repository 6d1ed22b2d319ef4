"""The token shared by one user's jobs on a cluster: where it is created, and which file is used."""

import os
import stat
import threading
from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.rendezvous import user_token
from relight.rendezvous.user_token import UserToken


def found(state: Path, kind: str = "nfs4") -> UserToken:
    """Return the token, if the state directory is on this type of file system."""
    mounts = state.parent / f"mounts.{threading.get_ident()}"
    mounts.write_text(f"a / ext4 rw 0 0\nb {state.parent} {kind} rw 0 0\nc /x nfs rw 0 0\n")
    return user_token.find(Environment({"RELIGHT_STATE_DIR": str(state)}), str(mounts))


def test_user_token_is_created_once_on_shared_file_system(tmp_path: Path) -> None:
    """Agents on all nodes create it at the same time."""
    paths: list[UserToken] = []
    threads = [
        threading.Thread(target=lambda: paths.append(found(tmp_path / "state"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = tmp_path / "state" / "token"
    assert set(paths) == {UserToken(str(path))}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert len(text.strip()) == 64
    assert found(tmp_path / "state").path == str(path) and path.read_text() == text
    assert os.listdir(tmp_path / "state") == ["token"]


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs"])
def test_no_user_token_is_created_on_local_file_system(tmp_path: Path, kind: str) -> None:
    """Other nodes could not read it."""
    assert found(tmp_path / "state", kind) == UserToken("")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("mode", "content", "note"),
    [
        (0o600, "secret", ""),
        (0o640, "secret", "other users have access to it (mode 0640); run `chmod 600 {path}`"),
        (0o606, "secret", "other users have access to it (mode 0606); run `chmod 600 {path}`"),
        (0o600, " \n", "it is empty; delete it"),
    ],
)
def test_unusable_token_file_is_ignored_with_a_note(
    tmp_path: Path, mode: int, content: str, note: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    told = f"ignoring the token in {path}: {note.format(path=path)}" if note else ""
    assert found(tmp_path, "ext4") == UserToken("" if note else str(path), told)


def test_no_user_token_is_created_in_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert found(tmp_path / "state") == UserToken("")
