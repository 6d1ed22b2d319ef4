"""A disk that fills up, or a script that writes to shared memory, only impairs one feature each."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, Start

pytestmark = pytest.mark.forked

UNSHARE = ("unshare", "--mount", "--map-root-user")
NO_FILES = 'mount -t tmpfs -o size=1m,nr_inodes="$FILES" none "$0" && exec "$@"'
FULL = """
mount -t tmpfs -o size=64k none "$0" && head -c 1M /dev/zero >"$0/filler" 2>/dev/null; exec "$@"
"""
Script = Callable[[str], Path]
REPORTS = """
import os, time
from relight.worker import deadline, progress, should_checkpoint
progress(1)
assert not should_checkpoint() and deadline() is None
if os.environ["TORCHELASTIC_RESTART_COUNT"] == os.environ["RANK"] == "0":
    raise ValueError("once")
"""
SAVES = """
import sys, time
from relight.worker import progress, should_checkpoint
progress(7)
while not should_checkpoint():
    print("up", flush=True)
    time.sleep(0.01)
print("saved", flush=True)
"""
SCRIBBLES = """
import mmap, os, sys
from relight import worker
worker.progress(1)
file = os.environ["TORCHELASTIC_ERROR_FILE"] + ".shared"
if sys.argv[1] == "truncate":
    os.truncate(file, 0)
else:
    with open(file, "r+b") as page:
        page.write(b"\\xff" * 4096)
    assert not worker.should_checkpoint()
    worker.progress(2)
raise ValueError("mine")
"""


LEAVES_ONE_PAGE = """
import mmap, os, sys
page = mmap.PAGESIZE
with open(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]) + "/filler", "wb", 0) as filler:
    try:
        while True:
            filler.write(bytes(page))
    except OSError:
        filler.truncate(filler.tell() - page)
print("wanted", file=sys.stderr)
"""
FAILS_ONCE = """
import os
print("printed", flush=True)
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1", "once"
"""


def on_full_disk(disk: Path, how: str = FULL) -> tuple[str, ...]:
    """Return a relight command for which this directory is a full disk."""
    disk.mkdir()
    return (*UNSHARE, "sh", "-c", how, str(disk), *RELIGHT)


@pytest.mark.needs_mounts
def test_full_disk_only_disables_error_files(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The disk has room for one generation's directories, but not for files in them."""
    disk = tmp_path / "disk"
    result = launch(
        "run", "--nproc-per-node=2", "--max-restarts=1", script(REPORTS),
        command=on_full_disk(disk, NO_FILES), TMPDIR=str(disk), FILES="4",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "ValueError: once" in result.stderr
    notes = [line for line in result.stderr.splitlines() if "have no effect" in line]
    assert len(notes) == 1, result.stderr  # from one rank
    assert "No space left on device" in notes[0] and str(disk) in notes[0]


@pytest.mark.needs_mounts
def test_preempted_node_checkpoints_despite_full_disk(
    start: Start, script: Script, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    agent = start(
        "run", "--nproc-per-node=2", script(SAVES),
        command=on_full_disk(disk), variables={"TMPDIR": str(disk)},
    )  # fmt: skip
    saves(agent)


def test_preempted_node_checkpoints_without_tmpdir(
    start: Start, script: Script, tmp_path: Path
) -> None:
    variables = {"TMPDIR": str(tmp_path / "missing")}
    saves(start("run", "--nproc-per-node=2", script(SAVES), variables=variables))


def saves(agent: "subprocess.Popen[bytes]") -> None:
    """Preempt a node, and check that its two workers save."""
    assert agent.stdout is not None
    for _ in range(20):
        assert agent.stdout.readline() == b"up\n"
    agent.send_signal(signal.SIGTERM)
    stdout, stderr = agent.communicate(timeout=LIMIT_S)
    assert (agent.returncode, stdout.count(b"saved")) == (75, 2), stderr
    assert b"have no effect" not in stderr and b"can't" not in stderr


@pytest.mark.parametrize("how", ["overwrite", "truncate"])
def test_agent_survives_corrupt_shared_memory_file(
    launch: Launch, script: Script, how: str
) -> None:
    result: subprocess.CompletedProcess[str] = launch(
        "run", "--hang-timeout=3600", "--max-restarts=1", script(SCRIBBLES), how
    )
    assert result.returncode == 1, result.stderr
    assert "rank 0 raised ValueError: mine" in result.stderr
    assert "restart 1 of 1" in result.stderr


@pytest.mark.needs_mounts
@pytest.mark.parametrize("files", [3, 4])
def test_job_starts_and_restarts_on_full_disk(
    launch: Launch, script: Script, tmp_path: Path, files: int
) -> None:
    """The files include the disk's root directory, the job directory, and its lock file."""
    disk = tmp_path / "disk"
    result = launch(
        "run", "--max-restarts=1", script(FAILS_ONCE),
        command=on_full_disk(disk, NO_FILES), TMPDIR=str(disk), FILES=str(files),
        TORCHELASTIC_ENABLE_FILE_TIMER="1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "AssertionError: once" in result.stderr
    assert f"torch's file timers have no effect: can't create {disk}/" in result.stderr


@pytest.mark.needs_mounts
@pytest.mark.parametrize(("files", "flag"), [(4, "--tee=3"), (5, "--tee=3"), (9, "--redirects=3")])
def test_output_goes_to_console_if_log_cannot_be_written(
    launch: Launch, script: Script, tmp_path: Path, files: int, flag: str
) -> None:
    """The disk lacks room for the directory of an attempt, a worker, or the second attempt."""
    disk = tmp_path / "disk"
    result = launch(
        "run", "--max-restarts=1", flag, f"--log-dir={disk}", script(FAILS_ONCE),
        command=on_full_disk(disk, NO_FILES), FILES=str(files),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "printed" in result.stdout
    assert f"relight: can't write logs to {disk}/" in result.stderr
    assert "No space left on device; output goes to the console" in result.stderr


@pytest.mark.needs_mounts
def test_writing_filtered_output_to_full_disk_stops_with_note(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The worker's own log gets the last page, so the filtered log gets none."""
    disk = tmp_path / "disk"
    result = launch(
        "run", "--tee=3", "--duplicate-stderr-filters=wanted", f"--log-dir={disk}",
        script(LEAVES_ONE_PAGE),
        command=on_full_disk(disk, 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "relight: no more lines are written to " in result.stderr
    assert "filtered_stderr.log: No space left on device" in result.stderr


@pytest.mark.needs_mounts
def test_workers_start_warm_even_if_runtime_directory_is_full(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    job = 'mkdir -m 700 "$0/run"; XDG_RUNTIME_DIR="$0/run" "$@"; code=$?'
    how = f'{FULL.partition("exec")[0]} {job}; XDG_RUNTIME_DIR="$0/run" "$1" -m relight warm stop; '
    result = launch(
        "run", "-v", "--preload=json", "--keep-warm", script("import json; print(json)"),
        command=on_full_disk(disk, how + "exit $code"), XDG_CACHE_HOME=str(disk),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "workers start with preloaded modules" in result.stderr
