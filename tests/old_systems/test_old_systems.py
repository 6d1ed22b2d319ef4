"""relight on Pythons that lack functions, and on systems where kernels or filters refuse calls.

`sitecustomize.py` in this directory disables them in all processes of a job.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import FIRST_WARM, LIMIT_S, RELIGHT, Launch, Start, clean_environment, long
from release.distribution import interpreter
from test_orphans import TREE, WARM_TREE, holders, marker, wait_until_gone, wait_until_up

import relight
from relight.host import linux
from relight.host.process_handle import ProcessHandle
from relight.processes import straggler_reports

__all__ = ["marker"]

HERE = Path(__file__).parent
OF_TWO = 12
"""The number of marked processes that two workers have."""
PIDFD_NAMES = "os.pidfd_open signal.pidfd_send_signal"
PIDFD_CALLS = ("pidfd_open", "pidfd_send_signal")


def variables(lacks: str = "", *refused: str, error: str = "ENOSYS") -> dict[str, str]:
    """Return the variables for a Python that lacks names and whose system calls are refused."""
    refuses = " ".join(call if ":" in call else f"{call}:{error}" for call in refused)
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "LACKS": lacks, "REFUSES": refuses, "OMP_NUM_THREADS": "1"}


SYSTEMS = {
    "a Python built with old headers": variables(
        f"{PIDFD_NAMES} os.P_PIDFD os.memfd_create", "close_range"
    ),
    "an old kernel": variables("", *PIDFD_CALLS),
    "both": variables(f"{PIDFD_NAMES} os.memfd_create", *PIDFD_CALLS, "memfd_create"),
    "a filter": variables("", *PIDFD_CALLS, "memfd_create", error="EPERM"),
    "a filter of signals": variables("", "pidfd_send_signal:EPERM"),
}


_ALWAYS = ("a Python built with old headers", "both")
"""The other systems take the same code paths."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in _ALWAYS else pytest.mark.long) for name in SYSTEMS
    ]
)
def system(request: pytest.FixtureRequest) -> dict[str, str]:
    """Each system's environment variables."""
    return SYSTEMS[request.param]


FAILS_ONCE = """
import os, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", rank, "attempt", attempt)
sys.exit(3 if (rank, attempt) == ("1", "0") else 0)
"""


def test_simulated_old_systems_lack_the_expected_system_calls() -> None:
    """Grandchildren lack them too, both in Python and in the kernel."""
    program = """if 1:
    import errno, os, signal, sys
    for call in (lambda: os.pidfd_open(1), lambda: os.memfd_create("x")):
        try:
            call()
        except (AttributeError, OSError) as error:
            print(getattr(error, "errno", "none"))
    """
    found = [
        subprocess.run(
            ["sh", "-c", '"$0" -c "$1"', RELIGHT[0], program],
            env=clean_environment(**each), capture_output=True, text=True, check=True,
        ).stdout.split()
        for each in SYSTEMS.values()
    ]  # fmt: skip
    assert found == [["none", "none"], ["38"], ["none", "none"], ["1", "1"], []]


@pytest.mark.parametrize("name", SYSTEMS)
def test_job_runs_and_restarts_on_old_systems(
    name: str, launch: Launch, script: Callable[[str], Path]
) -> None:
    """Two workers start, one of them fails, and both restart."""
    result = launch(
        "run", "--nproc-per-node=2", "--max-restarts=1", script(FAILS_ONCE), **SYSTEMS[name]
    )
    assert result.returncode == 0, result.stderr
    assert {"rank 0 attempt 1", "rank 1 attempt 1"} <= set(result.stdout.splitlines())
    (line,) = result.stderr.splitlines()
    assert "rank 1 exited with code 3" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["cold", "warm"])
def test_no_process_or_directory_outlives_the_agent(
    kind: str,
    number: int,
    system: dict[str, str],
    tmp_path: Path,
    start: Start,
    script: Callable[[str], Path],
    marker: str,
) -> None:
    """No processes and no directory are left, whether the agent is asked to end or killed."""
    tree, scratch = tmp_path / "tree.sh", tmp_path / "tmp"
    tree.write_text(TREE.format(marker=marker, lifetime="600", code=0))
    scratch.mkdir()
    program = ("--no-python", "sh") if kind == "cold" else ("--preload=json", script(WARM_TREE))
    agent = start(
        "run", "--nproc-per-node=2", "--shutdown-timeout=0.2", *program, tree,
        command=FIRST_WARM, variables={**system, "TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until_up(marker, OF_TWO)
    guard = ProcessHandle(holders(agent.pid)[0])
    agent.send_signal(number)
    assert agent.wait(LIMIT_S) == (143 if number == signal.SIGTERM else -number)
    wait_until_gone(marker)
    assert guard.wait(LIMIT_S)
    guard.close()
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("victim", ["guard", "spawner"])
def test_no_worker_outlives_a_killed_guard_or_spawner(
    victim: str, system: dict[str, str], tmp_path: Path, start: Start, marker: str
) -> None:
    """The agent notices and reports the loss."""
    tree = tmp_path / "tree.sh"
    tree.write_text(TREE.format(marker=marker, lifetime="600", code=0))
    agent = start("run", "--nproc-per-node=2", "--no-python", "sh", tree, variables=system)
    wait_until_up(marker, OF_TWO)
    guard, spawner = holders(agent.pid)
    os.kill(guard if victim == "guard" else spawner, signal.SIGKILL)
    _, errors = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 137, errors
    assert b"the worker spawner" in errors
    wait_until_gone(marker)


@pytest.fixture
def runtime(tmp_path: Path, system: dict[str, str]) -> Iterator[dict[str, str]]:
    """The variables of a system that has its own warm processes, which end with the test."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    environment = {**system, "XDG_RUNTIME_DIR": str(folder)}
    yield environment
    subprocess.run([*RELIGHT, "warm", "stop"], env=clean_environment(**environment), check=False)


def test_warm_process_serves_jobs_and_stops_on_request(
    runtime: dict[str, str], tmp_path: Path, launch: Launch, script: Callable[[str], Path]
) -> None:
    """A warm process forks the workers of two jobs, which restart, and ends on request."""
    train = script("import json\n" + FAILS_ONCE)
    modules = "--preload=json,broken"
    (tmp_path / "broken.py").write_text("import os; os._exit(5)")
    path = {"PYTHONPATH": os.pathsep.join((runtime["PYTHONPATH"], str(tmp_path)))}
    runtime = {**runtime, **path}
    made = launch("warm", "start", "--nproc-per-node=2", modules, train, **runtime)
    assert made.returncode == 0, made.stderr
    for _ in range(2):
        job = launch(
            "run", "-v", "--nproc-per-node=2", "--max-restarts=1", modules, train, **runtime
        )
        assert job.returncode == 0, job.stderr
        assert "using warm process" in job.stderr
        assert {"rank 0 attempt 1", "rank 1 attempt 1"} <= set(job.stdout.splitlines())
    stopped = launch("warm", "stop", **runtime)
    assert "has ended" in stopped.stderr
    assert "no warm processes" in launch("warm", **runtime).stderr


OPTIONAL_CALLS = (
    "inotify_init1", "inotify_add_watch", "epoll_create1", "close_range", "keyctl", "ioprio_set",
    "sched_getaffinity", "sched_getscheduler", "sched_setscheduler", "setpriority",
    *("prctl=1", "prctl=15", "prctl=35", "prctl=36"),
)  # fmt: skip
"""Everything that docs/install.md calls optional. For the prctl(2) numbers, see PR_SET_PDEATHSIG,
PR_SET_NAME, PR_SET_MM, and PR_SET_CHILD_SUBREAPER.
"""
OPTIONAL_FILES = (
    "/dev/shm/*", "/proc/*/autogroup", "/proc/*/cgroup", "/proc/*/environ", "/proc/*/io",
    "/proc/*/mem", "/proc/*/net/*", "/proc/*/numa_maps", "/proc/*/sessionid",
    "/proc/*/smaps_rollup", "/proc/*/statm", "/proc/*/task/*/children", "/proc/pressure/*",
    "/proc/sys/*", "/proc/uptime", "/sys/*",
)  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "files"),
    [
        pytest.param(OPTIONAL_CALLS, OPTIONAL_FILES, id="all"),
        *(pytest.param((call,), (), id=call, marks=pytest.mark.long) for call in OPTIONAL_CALLS),
        *(pytest.param((), (path,), id=path, marks=pytest.mark.long) for path in OPTIONAL_FILES),
    ],
)
def test_job_runs_without_optional_system_calls_and_files(
    calls: tuple[str, ...],
    files: tuple[str, ...],
    tmp_path: Path,
    launch: Launch,
    script: Callable[[str], Path],
) -> None:
    """Workers are forked from a warm process and restart, and no output is lost."""
    own = {"HIDES": " ".join(files), "XDG_RUNTIME_DIR": str(tmp_path)}
    system = {**variables("", *calls, error="EPERM"), **own}
    tmp_path.chmod(0o700)
    train = script(FAILS_ONCE)
    flags = ("--nproc-per-node=2", "--preload=json")
    made = launch("warm", "start", *flags, train, **system)
    assert made.returncode == 0, made.stderr
    result = launch(
        "run", "-v", *flags, "--max-restarts=1", "--tee=3", "--log-dir=logs", train, **system
    )
    assert result.returncode == 0, result.stderr
    assert "using warm process" in result.stderr
    lines = {"[default0]:rank 0 attempt 1", "[default1]:rank 1 attempt 1"}
    assert lines <= set(result.stdout.splitlines())
    assert "has ended" in launch("warm", "stop", **system).stderr


@pytest.mark.parametrize("module", ["_ctypes", "_ssl"])
def test_error_shows_the_missing_required_module(
    module: str, launch: Launch, tmp_path: Path, script: Callable[[str], Path]
) -> None:
    """A Python lacks a module if a library's headers were missing when it was built."""
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    result = launch(
        "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1", "--rdzv-id=1",
        "--rdzv-conf=tls_cert=cert,tls_key=key,tls_ca=ca", script("print('trains')"),
        **variables(), NO=module,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (4, "")
    first, hint = result.stderr.splitlines()[-2:]
    assert first == f"relight: error: {RELIGHT[0]} was built without {module}"
    assert hint.startswith("hint: use a different Python")


@pytest.mark.parametrize("name", [long("none"), "both"])
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=getattr(pytest.mark, f"needs_python{each.replace('.', '')}"))
        for each in ("3.12", "3.13", "3.14")
    ],
)
def test_job_restarts_on_each_python_version(
    version: str, name: str, launch: Launch, script: Callable[[str], Path]
) -> None:
    """The agent also runs on that Python; workers are cold or warm."""
    system = SYSTEMS.get(name, variables())
    path = os.pathsep.join((system["PYTHONPATH"], str(Path(relight.__file__).parents[1])))
    train = script(f"import sys; assert '%d.%d' % sys.version_info[:2] == {version!r}" + FAILS_ONCE)
    for flags in ((), ("--preload=json", "-v")):
        result = launch(
            "run", "--nproc-per-node=2", "--max-restarts=1", *flags, train,
            command=(interpreter(version), *FIRST_WARM[1:]), **{**system, "PYTHONPATH": path},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert {"rank 0 attempt 1", "rank 1 attempt 1"} <= set(result.stdout.splitlines())
        assert "Warning" not in result.stderr
    assert "workers start with preloaded modules" in result.stderr


def test_job_gets_all_cpus_if_affinity_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPUs determine --nproc-per-node=auto, and whether workers wait for preloaded modules."""

    def refuse(_: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert linux.cpus() == os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert linux.cpus() == os.cpu_count()


def test_status_finds_slow_ranks_without_memfd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    shown = straggler_reports.ShownSlowRanks()
    told = straggler_reports.RanksSlow((1,), ("node1",), 2.0, 3.0, 4.0, "rank 1 is slow")
    shown.show(told)
    assert straggler_reports.shown_by(os.getpid()) == "rank 1 is slow"
    shown.close()
    assert straggler_reports.shown_by(os.getpid()) == ""
