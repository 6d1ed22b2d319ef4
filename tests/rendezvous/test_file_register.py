"""The leader lock in a directory: file locks, kills at any time, and failing disks."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment
from etcd_server import wait_for

from relight.base.errors import UsageError
from relight.rendezvous import file
from relight.rendezvous.file import FileRegister
from relight.rendezvous.leader_lock import NOBODY, LeaderLock, Record

LONG_S = 60.0
SHORT_S = 0.4
NOBODY_S_ID = 65534


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def new(shared: Path) -> Callable[[], LeaderLock]:
    return lambda: file.open(str(shared), "job")


@pytest.fixture
def python() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Run some Python code in a process that is killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(code: str, *arguments: object, command: tuple[str, ...] = (), **options: object):
        processes.append(
            subprocess.Popen(
                [*command, sys.executable, "-c", code, *map(str, arguments)],
                env=clean_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **options,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_directory_is_private_and_keeps_only_an_empty_lock_file(
    shared: Path, new: Callable[[], LeaderLock]
) -> None:
    """Only this user can access the directory; after the job, only an empty lock file remains."""
    register = new()
    register.hold("", LONG_S)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    register.hold("10.0.0.1:29400", LONG_S)
    register.hold("10.0.0.1:29400", LONG_S)
    assert json.loads((shared / "job").read_text())["value"] == "10.0.0.1:29400"
    assert {path.name for path in shared.iterdir()} == {"job", "job.lock"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in shared.iterdir())
    register.release()
    assert [(path.name, path.stat().st_size) for path in shared.iterdir()] == [("job.lock", 0)]


def test_existing_directory_keeps_its_permissions(
    shared: Path, new: Callable[[], LeaderLock]
) -> None:
    """The user chose the permissions of a directory that already exists."""
    shared.mkdir(mode=0o755)
    assert new().hold("a", LONG_S).ours
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_lock_calls_succeed_after_directory_is_removed(
    shared: Path, new: Callable[[], LeaderLock]
) -> None:
    """If the directory is removed, the next node to request the lock acquires it; no call fails."""
    first, second = new(), new()
    before = first.hold("first", LONG_S)
    shutil.rmtree(shared)
    assert second.hold("", LONG_S) == NOBODY
    after = first.hold("first", LONG_S)
    assert after.ours
    assert after.revision != before.revision


def test_new_node_waits_for_the_full_ttl_of_an_old_record(
    new: Callable[[], LeaderLock],
) -> None:
    """A new node waits for the full time to live, however old the record is."""
    first, second, third = new(), new(), new()
    first.hold("first", SHORT_S)
    second.hold("", SHORT_S)
    time.sleep(2 * SHORT_S)
    assert third.hold("third", SHORT_S).value == "first"
    assert second.hold("second", SHORT_S).ours
    assert third.hold("third", SHORT_S).value == "second"


def test_longer_ttl_applies_if_nodes_use_different_ttls(new: Callable[[], LeaderLock]) -> None:
    """A node with a shorter time to live than the holder's waits for the holder's."""
    first, second = new(), new()
    first.hold("first", LONG_S)
    second.hold("second", SHORT_S)
    time.sleep(2 * SHORT_S)
    assert second.hold("second", SHORT_S).value == "first"


def test_modification_time_of_record_is_ignored(
    shared: Path, new: Callable[[], LeaderLock]
) -> None:
    """A record is treated the same whether its file time is in the future or in the past."""
    first, second = new(), new()
    for moment in (0, 2**33):
        first.hold("first", LONG_S)
        os.utime(shared / "job", (moment, moment))
        assert second.hold("second", LONG_S).value == "first"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "hello", "\0" * 4096, "[" * 50000, "x" * 200_000, "9" * 5000]
    + [
        json.dumps({"token": "t", "value": "v", "revision": "t.1", "beat": 1, "ttl_s": 1} | change)
        for change in (
            {"token": 1}, {"revision": ""}, {"value": None}, {"ttl_s": "1"}, {"ttl_s": -1},
            {"ttl_s": float("inf")}, {"ttl_s": float("nan")}, {"beat": "1"},
        )
    ],
    ids=lambda text: repr(text[:70]),
)  # fmt: skip
def test_unreadable_lock_record_is_replaced_after_ttl(
    shared: Path, new: Callable[[], LeaderLock], text: str
) -> None:
    """An unreadable record counts as held until it was unchanged for a full time to live."""
    shared.mkdir()
    (shared / "job").write_text(text)
    first, second = new(), new()
    seen = first.hold("first", SHORT_S)
    assert (seen.value, seen.ours) == ("", False)
    assert seen.revision
    time.sleep(SHORT_S)
    (shared / "job").write_text(f"{text[:100]} ")  # it is still being written
    asked = time.monotonic()
    assert not first.hold("first", SHORT_S).ours
    wait_for(lambda: first.hold("first", SHORT_S).ours, "the record")
    assert time.monotonic() >= asked + SHORT_S
    assert second.hold("second", SHORT_S).value == "first"


def test_unreadable_lock_record_can_be_evicted(shared: Path, new: Callable[[], LeaderLock]) -> None:
    """An eviction removes only the record that was seen, and no later one."""
    shared.mkdir()
    (shared / "job").write_text("what")
    register = new()
    seen = register.hold("a", LONG_S)
    (shared / "job").write_text("else")
    register.evict(seen)
    assert register.hold("a", LONG_S) != NOBODY
    register.evict(register.hold("", LONG_S))
    assert register.hold("a", LONG_S).ours


LOCK = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(100)
"""


def test_stuck_file_lock_error_shows_the_holding_process(
    shared: Path, new: Callable[[], LeaderLock], python: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """The error names the process that keeps the file lock; killing that process frees it."""
    shared.mkdir()
    process = python(LOCK, shared / "job.lock")
    assert process.stdout.readline() == b"locked\n"
    register = new()
    assert register.hold("", LONG_S) == NOBODY  # reading needs no file lock
    with pytest.raises(OSError, match=f"job.lock has been locked .* by process {process.pid}"):
        register.hold("a", LONG_S)
    process.kill()
    process.wait(LIMIT_S)
    assert register.hold("a", LONG_S).ours


def test_file_lock_held_by_another_thread_is_an_error(
    shared: Path, new: Callable[[], LeaderLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another thread in this process doesn't release it, an error is raised."""
    monkeypatch.setattr(file, "_LOCK_S", 0.05)
    with file._OF_THIS_PROCESS, pytest.raises(OSError, match="locked by another thread"):
        new().hold("a", LONG_S)
    assert new().hold("a", LONG_S).ours


HOLD = """
import sys, time
from relight.rendezvous import file
register = file.open(sys.argv[1], "job")
value = 0
while True:
    value += 1
    ours = register.hold(f"{sys.argv[2]} {value}", 0.2).ours
    if value % 50 == 0 and ours:
        print(value, flush=True)
"""


@pytest.mark.slow
def test_killed_holder_leaves_intact_record_and_unlocked_file(
    shared: Path, new: Callable[[], LeaderLock], python: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """A holder killed while writing leaves a complete record and an unlocked file."""
    register = new()
    for turn in range(15):
        process = python(HOLD, shared, turn)
        assert process.stdout.readline()
        time.sleep(turn / 997)
        process.kill()
        process.wait(LIMIT_S)
        record = json.loads((shared / "job").read_text())
        assert record["value"].startswith(f"{turn} ")
        assert register.hold("tester", LONG_S).value == record["value"]
        wait_for(lambda: register.hold("tester", 0.2).ours, "the register")
        register.release()
        assert not (shared / "job").exists()


@pytest.mark.slow
def test_resumed_holder_notices_that_it_was_replaced(
    shared: Path, new: Callable[[], LeaderLock], python: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """A holder that was stopped and replaced does not retake the lock when it resumes."""
    # Because of the pause, it is usually stopped without the file lock.
    process = python(HOLD + "    time.sleep(0.02)\n", shared, "stopped")
    assert process.stdout.readline()
    register = new()

    def stopped_without_lock() -> bool:
        process.send_signal(signal.SIGSTOP)
        try:
            register.evict(Record("", "of nobody", False))
        except OSError:  # stopped while it had the file lock
            process.send_signal(signal.SIGCONT)
            return False
        return True

    wait_for(stopped_without_lock, "a stop between two calls")
    wait_for(lambda: register.hold("other", 0.2).ours, "the register")
    mine = register.hold("other", LONG_S)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert register.hold("other", LONG_S) == mine


def test_holder_frozen_while_writing_does_not_overwrite_successor(
    new: Callable[[], LeaderLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was frozen while writing does not overwrite a newer record."""
    first, second = new(), new()
    before = second.hold("second", LONG_S)
    monkeypatch.setattr(file, "_FROZEN_S", -1.0)
    with pytest.raises(OSError, match="took too long"):
        second.hold("changed", LONG_S)
    assert first.hold("first", LONG_S) == before._replace(ours=False)


# Invalid settings.


@pytest.mark.parametrize("endpoint", ["", "shared", "./shared", "~/shared", "host:29400", "/a\0b"])
def test_relative_path_is_rejected_up_front(endpoint: str) -> None:
    """A relative path may differ on each node, so it is refused before anything starts."""
    with pytest.raises(UsageError, match="expected the full path of a directory"):
        file.open(endpoint, "job")


def test_only_last_directory_of_path_is_created(tmp_path: Path) -> None:
    """A missing parent directory indicates a missing disk."""
    register = file.open(str(tmp_path / "disk" / "jobs"), "job")
    with pytest.raises(UsageError, match=f"no such directory: {tmp_path}/disk") as caught:
        register.hold("", LONG_S)
    assert "mounted" in caught.value.hint
    assert not (tmp_path / "disk").exists()


def test_path_to_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"rdzv-endpoint={path}: Not a directory"):
            file.open(str(path), "job").hold("a", LONG_S)


def test_symlinks_are_not_followed(shared: Path, tmp_path: Path) -> None:
    """Nothing is read or written through links that somebody else has created."""
    shared.mkdir()
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("job", "job.lock", "job.new"):
        (shared / name).symlink_to(target)
        with pytest.raises(UsageError, match="symbolic links"):
            file.open(str(shared), "job").hold("a", LONG_S)
        (shared / name).unlink()
    assert target.read_text() == "precious"


TRY = """
import sys
from relight.base.errors import UsageError
from relight.rendezvous import file
try:
    register = file.open(sys.argv[1], "job")
    print(register.hold(sys.argv[2], 60))
except UsageError as error:
    print("never:", error.message, "|", error.hint)
except OSError as error:
    print("not now:", error)
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can access, with a copy of the source."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "shared").mkdir()
        source = Path(file.__file__).parent.parent
        shutil.copytree(source, path / "relight", ignore=shutil.ignore_patterns("__pycache__"))
        yield path


def test_read_only_directory_can_be_read(open_directory: Path) -> None:
    """Without write permission, the lock can be read; acquiring it names the missing permission."""
    shared = open_directory / "shared"
    assert file.open(str(shared), "other").hold("a", LONG_S).ours
    shared.chmod(0o555)
    user = {"user": NOBODY_S_ID, "extra_groups": []} if os.getuid() == 0 else {}
    said = {}
    for value in ("", "a"):
        result = subprocess.run(
            [_plain_python(), "-S", "-c", TRY, shared, value],
            env={"PYTHONPATH": str(open_directory)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
            **user,
        )
        said[value] = result.stdout
    assert said[""] == f"{NOBODY}\n"
    assert said["a"].startswith(f"never: --rdzv-endpoint={shared}: Permission denied | ")
    assert "writable by this user on every node" in said["a"]


def _plain_python() -> str:
    """Return a Python interpreter that another user may run."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        if os.access(path, os.X_OK) and all(
            parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).parents
        ):
            return path
    pytest.skip("no Python that every user may run")


FULL = """
import os, subprocess, sys, time
from relight.rendezvous import file
path = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", path], check=True)
first, second = (file.open(f"{path}/shared", "job") for _ in range(2))
mine = first.hold("first holder, whose name is long", 60)
assert mine.ours
with open(f"{path}/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(512))
    except OSError:
        pass
before = open(f"{path}/shared/job").read()
assert first.hold(mine.value, 60) == mine
assert open(f"{path}/shared/job").read() != before, "not renewed"
assert second.hold("second", 60) == mine._replace(ours=False)
assert first.hold(mine.value, 0.1) == mine
third = file.open(f"{path}/shared", "job")
assert third.hold("third", 0.1) == mine._replace(ours=False)
time.sleep(0.2)
assert third.hold("third", 0.1).ours, "the record of a lost holder is taken"
assert first.hold("", 60).value == "third"
assert sorted(os.listdir(f"{path}/shared")) == ["job", "job.lock"]
try:
    file.open(f"{path}/shared", "another").hold("new", 60)
except OSError as error:
    print(error)
os.unlink(f"{path}/filler")
assert third.hold("third", 60).ours
assert not open(f"{path}/shared/job").read().endswith(" ")
"""


@pytest.mark.needs_mounts
def test_lock_can_be_renewed_and_taken_over_on_full_disk(tmp_path: Path) -> None:
    """On a full disk, a record can be renewed in place, and so can a lost holder's record be
    replaced; only a new record needs room.
    """
    unshare = ("unshare", "--mount", "--map-root-user")
    result = subprocess.run(
        [*unshare, sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=clean_environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    full = f"{tmp_path}/shared is full: {os.strerror(errno.ENOSPC)}"
    assert result.stdout.splitlines() == [full]


@pytest.mark.parametrize(
    ("number", "never"),
    [(errno.EIO, False), (errno.ESTALE, False), (errno.EROFS, True), (errno.ENOTSUP, True)],
)
def test_only_transient_disk_errors_are_retried(
    new: Callable[[], LeaderLock], monkeypatch: pytest.MonkeyPatch, number: int, never: bool
) -> None:
    """Transient disk errors are retried; errors that waiting can't fix end the job."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    register = new()
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", refuse)
        with pytest.raises(UsageError if never else OSError, match=os.strerror(number)):
            register.hold("a", LONG_S)
    assert isinstance(register, FileRegister)
    assert register.hold("a", LONG_S).ours
