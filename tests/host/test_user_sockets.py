"""Unix sockets owned by one user's processes."""

import socket
from pathlib import Path

import pytest

from relight.host import user_sockets


def test_socket_is_not_removed_before_its_process_starts_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`relight list` may run while an agent is starting."""
    path = tmp_path / "job.sock"
    listen = socket.socket.listen

    def look_first(listener: socket.socket, backlog: int) -> None:
        for each in tmp_path.glob("*.sock"):
            user_sockets.connect(str(each), 1.0)
        listen(listener, backlog)

    monkeypatch.setattr(socket.socket, "listen", look_first)
    with user_sockets.listen(str(path)):
        assert [each.name for each in tmp_path.iterdir()] == ["job.sock"]
        connection = user_sockets.connect(str(path), 1.0)
        assert connection is not None
        connection.close()


def test_socket_of_dead_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "job.sock"
    user_sockets.listen(str(path)).close()
    assert user_sockets.connect(str(path), 1.0) is None
    assert not path.exists()
