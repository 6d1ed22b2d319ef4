"""An agent saves its snapshots in its run directory, which may be on a slow file server."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LIMIT_S

from relight.agent.status import answers, status_file
from relight.agent.status.status_file import StatusFile
from relight.host import files
from relight.host.loop import Loop

REAL_REPLACE = files.replace


class Disk:
    """The run directory. Writes block until `responds` is set, and then raise `error`, if any."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "status.json"
        self.responds = threading.Event()
        self.responds.set()
        self.error: OSError | None = None
        self.writes = threading.Semaphore(0)
        """Released at the start of each write."""

    def replace(self, path: str, text: str) -> None:
        error = self.error
        self.writes.release()
        self.responds.wait(LIMIT_S)
        if error is not None:
            raise error
        REAL_REPLACE(path, text)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    monkeypatch.setattr(files, "replace", disk.replace)
    yield disk
    disk.responds.set()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def job(loop: Loop, disk: Disk) -> Any:
    config = SimpleNamespace(run_directory=str(disk.path.parent))
    return SimpleNamespace(loop=loop, end="running", config=config)


@pytest.fixture
def opened(job: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], StatusFile]:
    """Start saving a job's snapshots, whose text is the job's end and a number."""
    taken: list[Any] = []

    def snapshot(_: object) -> Any:
        taken.append(SimpleNamespace(nodes=1, text=f"{job.end} {len(taken)}"))
        return taken[-1]

    monkeypatch.setattr(answers, "snapshot", snapshot)
    monkeypatch.setattr(answers, "to_text", lambda snapshot: snapshot.text)
    monkeypatch.setattr(status_file, "_EVERY_S", 0.01)
    return lambda: StatusFile(job)


def test_saves_snapshots_until_job_ends(
    opened: Callable[[], StatusFile], job: Any, loop: Loop, disk: Disk
) -> None:
    file = opened()
    for text in ("running 0", "running 1"):
        loop.run_until(lambda t=text: disk.path.exists() and disk.path.read_text() == t, LIMIT_S)
        assert disk.path.read_text() == text
    job.end = "failed"
    file.close()
    assert disk.path.read_text().startswith("failed")


def test_full_disk_does_not_end_saving(
    opened: Callable[[], StatusFile], job: Any, loop: Loop, disk: Disk
) -> None:
    disk.error = OSError(28, "No space left on device")
    file = opened()
    loop.run_until(lambda: disk.writes.acquire(blocking=False), LIMIT_S)
    disk.error = None
    loop.run_until(disk.path.exists, LIMIT_S)
    disk.error = OSError(28, "No space left on device")
    job.end = "done"
    file.close()
    assert disk.path.read_text().startswith("running")


def test_close_does_not_wait_for_unresponsive_file_server(
    opened: Callable[[], StatusFile],
    job: Any,
    loop: Loop,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last snapshot is still saved after the one before it, once the server responds."""
    monkeypatch.setattr(status_file, "_LIMIT_S", 0.05)
    disk.responds.clear()
    file = opened()
    assert disk.writes.acquire(timeout=LIMIT_S)
    job.end = "done"
    file.close()
    assert not disk.path.exists()
    disk.responds.set()
    assert disk.writes.acquire(timeout=LIMIT_S)
    loop.run_until(lambda: disk.path.exists() and disk.path.read_text().startswith("done"), LIMIT_S)
    assert disk.path.read_text().startswith("done")


def test_snapshot_is_not_saved_after_the_last_one(
    opened: Callable[[], StatusFile], loop: Loop, disk: Disk
) -> None:
    file = opened()
    file.close()
    last = disk.path.read_text()
    loop.run_until(lambda: disk.path.read_text() != last, 0.05)
    assert disk.path.read_text() == last
