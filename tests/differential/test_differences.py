"""docs/differences.md is complete and true; also tests differences that recordings can't show."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
from conftest import LIMIT_S, Start, long
from conftest import RELIGHT as OURS
from conftest import TORCHRUN as THEIRS
from test_logs_console import TICKS, Terminal

from differential.cases import CASES, Case, two
from differential.differences import DIFFERENCES, SHOWN, shows
from differential.recording import RELIGHT, TORCHRUN, Recording, Started, prepare, record
from differential.sections import sections
from relight.agent import entrypoint
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import Endpoint, Nodes
from relight.flags.arguments import parse, to_spec
from relight.rendezvous.autodetect import take

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "differences.md"
PLUG_INS = str(Path(__file__).parents[1] / "rendezvous" / "plugin")
COMMANDS = {RELIGHT: (*OURS, "run"), TORCHRUN: THEIRS}
WAITING, STAYING = {"PROBE_END": "0.0=wait"}, {"PROBE_END": "0.0=stay"}

Begin = Callable[[str, Case], tuple[Started, int]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a one-worker case; return its launcher, and the worker's pid once it is running."""
    launchers: list[Started] = []
    pids: list[int] = []

    def start(launcher: str, case: Case) -> tuple[Started, int]:
        work = tmp_path / launcher
        argv, environment, *_ = prepare(case, launcher, work)
        null = os.open(os.devnull, os.O_RDWR)
        process: Started
        if launcher == TORCHRUN:
            _, module, *words = argv[argv.index("-m") :]
            process = forked.Forked(str(module), words, work, environment, [null] * 3, case.under)
        else:
            process = subprocess.Popen(
                argv,
                cwd=work,
                env=environment,
                stdin=null,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
        os.close(null)
        launchers.append(process)
        path = work / "records" / "0.0.json"
        wait_until(path.exists, "the worker did not start")
        pids.append(json.loads(path.read_text())["pid"])
        return process, pids[-1]

    yield start
    for process in launchers:
        process.kill()
        process.wait()
    for pid in pids:
        if is_alive(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether this pid is a running probe, not a zombie or an unrelated program."""
    try:
        return b"probe.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def documented(nodes: str = "one") -> dict[str, dict[str, str]]:
    """Return the document's items by label, for single-node or multi-node jobs."""
    one, several = DOCUMENT.read_text().split("## Jobs of several nodes")
    return sections(one if nodes == "one" else several)


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_every_difference_is_documented() -> None:
    """Each has both sides and a reason, and no other differences are allowed."""
    found = documented()
    assert found.keys() == DIFFERENCES.keys() | SHOWN
    assert all(list(items) == ["torchrun", "relight", "why"] for items in found.values())
    assert all(all(items.values()) for items in found.values())
    for name, difference in DIFFERENCES.items():
        assert found[name]["why"] == difference.why + "."


def test_multi_node_differences_refer_to_existing_tests() -> None:
    found = documented("several")
    assert len(found) > 10
    for name, items in found.items():
        assert list(items) == ["torchrun", "relight", "why", "test"], name
        path, _, function = items["test"].strip("`").partition("::")
        source = (Path(__file__).parents[1] / path).read_text()
        assert f"def {function}(" in source, name


def test_every_allowed_difference_occurs_in_a_test_case() -> None:
    used = {name for case in CASES for name in case.differs}
    assert used == DIFFERENCES.keys()
    assert not used & SHOWN


@shows("silent-flags")
@pytest.mark.needs_torch
@pytest.mark.parametrize("case", [named("filters without tee")], ids=lambda case: case.name)
def test_flag_without_effect_prints_a_note(
    case: Case, reference: Callable[[Case], Recording], tmp_path: Path
) -> None:
    """Torchrun ignores such flags silently."""
    flag = "--duplicate-stdout-filters"
    assert not any(flag in line for line in reference(case).says)
    notes = [line for line in record(case, RELIGHT, tmp_path / "ours").says if flag in line]
    assert len(notes) == 1


@shows("event-log-handler")
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    "case", [Case("event-log-handler=console", ("--event-log-handler=console",))]
)
def test_events_go_to_stderr_as_json_lines(
    case: Case, reference: Callable[[Case], Recording], tmp_path: Path
) -> None:
    """Both launchers can write events to stderr, but relight has its own events."""
    theirs = [line for line in reference(case).says if "torchelastic.worker.status" in line]
    ours = [json.loads(line) for line in record(case, RELIGHT, tmp_path / "ours").says]
    assert theirs
    assert [event["event"] for event in ours if event["event"] != "StateChanged"] == [
        "Formed",
        "WorkerStarted",
        "WorkerExited",
        "Ended",
    ]


@shows("monitor-interval")
def test_job_ends_without_waiting_for_monitor_interval(tmp_path: Path) -> None:
    assert record(Case("", ("--monitor-interval=1000",)), RELIGHT, tmp_path / "ours").exit_code == 0


@shows("one-node")
@pytest.mark.parametrize("backend", ["c10d", "etcd", "etcd-v2"])
def test_single_node_job_needs_no_endpoint(backend: str, tmp_path: Path) -> None:
    """A single node needs no rendezvous."""
    flags = (f"--rdzv-backend={backend}", "--rdzv-endpoint=192.0.2.1:9")
    found = record(Case("", flags), RELIGHT, tmp_path / "ours")
    assert found.exit_code == 0
    assert found.workers["0.0"]["environment"]["MASTER_ADDR"] == "127.0.0.1"


@shows("endpoint-wait")
@shows("group-exit-code")
def test_endpoint_without_coordinator_times_out(tmp_path: Path) -> None:
    """A node that may not host the endpoint waits for twice the read_timeout."""
    flags = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-conf=is_host=0,read_timeout=0.3")  # fmt: skip
    found = record(Case("", flags), RELIGHT, tmp_path / "ours")
    assert found.exit_code == 3
    assert any("no coordinator at 127.0.0.1:" in line for line in found.says), found.says


@shows("script-in-a-pipe")
def test_script_from_pipe_runs_only_one_worker() -> None:
    """The other workers would run an empty program."""
    spec = to_spec(parse(["-"], Environment({})))
    assert entrypoint.check_streams(spec, 1) == []
    with pytest.raises(UsageError, match="would run an empty program"):
        entrypoint.check_streams(spec, 2)


@shows("static-port")
def test_static_endpoint_uses_the_default_port() -> None:
    """The workers meet at the endpoint's host, on torchrun's default port."""
    spec = to_spec(parse(["--rdzv-endpoint=node1", "train.py"], Environment({})))
    assert spec.store_address() == Endpoint("node1", 29500)


@shows("log-level")
def test_log_level_variable_is_only_passed_to_the_worker(tmp_path: Path) -> None:
    """Even a level that prevents torchrun from starting is passed on."""
    found = record(Case("", variables={"LOGLEVEL": "chatty"}), RELIGHT, tmp_path / "ours")
    assert (found.exit_code, found.says) == (0, [])
    assert found.workers["0.0"]["environment"]["LOGLEVEL"] == "chatty"


@shows("zero-flags")
@pytest.mark.parametrize(("flags", "nodes"), [([], 2), (["--nnodes=1"], 1), (["--standalone"], 1)])
def test_cluster_environment_sets_nnodes_unless_the_flag_is_given(
    flags: list[str], nodes: int
) -> None:
    cluster = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    environment = Environment(cluster)
    parsed = parse([*flags, "train.py"], environment)
    spec, _, _ = take(to_spec(parsed), parsed.given, environment)
    assert spec.nnodes == Nodes(nodes, nodes)


@shows("file-store")
def test_c10d_file_store_is_a_directory(tmp_path: Path) -> None:
    """The nodes meet at the path where torchrun would create a file."""
    flags = ("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint={work}/tmp/store",
             "--rdzv-conf=store_type=file,last_call_timeout=0.1")  # fmt: skip
    found = record(Case("", flags), RELIGHT, tmp_path / "ours")
    assert found.exit_code == 0, found.says
    assert found.left == ["store", "store/none.lock"]


@shows("torch-plug-ins")
@pytest.mark.parametrize(
    ("flag", "remedy"),
    [("--rdzv-backend=theirs", "relight.rendezvous"), ("--logs-specs=theirs", "--redirects")],
)
def test_torch_rendezvous_plugin_is_rejected_with_a_hint(
    flag: str, remedy: str, tmp_path: Path
) -> None:
    """The plug-in is recognized by its name in torch's entry point groups."""
    found = record(Case("", (flag,), variables={"PYTHONPATH": PLUG_INS}), RELIGHT, tmp_path / "o")
    assert (found.exit_code, found.workers) == (2, {})
    line, hint = found.says
    assert f"{flag} is torch's plug-in relight_nowhere:" in line
    assert remedy in hint


TIMERS = """
import json, os, subprocess, sys, time
request = '''
import json, os, sys, time
request = {"version": 1, "pid": os.getpid(), "scope_id": "step", "expiration_time": 1, "signal": 9}
with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as fifo:
    for line in sys.argv[1:]:
        fifo.write(json.dumps({**request, **json.loads(line)}) + chr(10))
time.sleep(600)
'''
strangers = [int(sys.argv[1]), os.getppid(), os.getpid(), 1, 0, -1]
lines = [json.dumps({"pid": pid, "signal": 9 * (pid != os.getpid())}) for pid in strangers]
lines += ['{"signal": 999}', '{"expiration_time": 1e999}', '{"expiration_time": 9e9}', "{}"]
child = subprocess.Popen([sys.executable, "-c", request, *lines])
assert child.wait(180) == -9, child.returncode
"""


@shows("late-child")
@shows("foreign-timer")
def test_expired_timer_of_a_child_process_kills_only_the_child(tmp_path: Path) -> None:
    """The timer kills neither the worker nor a process outside the job."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        case = Case("", script=("-",), args=(str(stranger.pid),), stdin=TIMERS.encode(),
                    variables={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})  # fmt: skip
        found = record(case, RELIGHT, tmp_path / "ours")
        alive = stranger.poll() is None
        stranger.kill()
    assert (found.exit_code, alive) == (0, True), found.says
    [line] = found.says
    assert "a child of local rank 0: its timer step expired" in line


STUCK = """
import ctypes, os, platform, probe, signal, time
probe.main()
clone, vfork = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x4000
if os.environ["RANK"] == "0":  # it waits in state D until the child ends, with vfork
    ctypes.CDLL(None).syscall(clone, vfork | signal.SIGCHLD, 0, 0, 0, 0)
time.sleep(600)
"""


@shows("stuck-worker")
def test_worker_in_uninterruptible_call_fails_job(tmp_path: Path) -> None:
    """TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT ends the job with a reason and no restart."""
    (script := tmp_path / "stuck.py").write_text(STUCK)
    case = two("", "--max-restarts=2", script=(str(script),), variables={
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.3", "PYTHONPATH": "{work}"})  # fmt: skip
    found = record(case, RELIGHT, tmp_path / "ours")
    assert (found.exit_code, set(found.workers)) == (137, {"0.0", "0.1"}), found.says
    said = "\n".join(found.says)
    assert (
        "rank 0 was killed by SIGKILL: it was in an uninterruptible system call (state D)" in said
    )
    assert "no restart: " in said
    assert found.left == []


@shows("grace-time")
def test_shutdown_timeout_applies_after_a_worker_failure(tmp_path: Path) -> None:
    """The timeout also limits how long a failed worker's peers may take to stop."""
    ends = {"PROBE_END": "0.0=stay,0.1=7", "PROBE_STAY": "25"}  # torchrun kills after 30 s
    found = record(two("", "--shutdown-timeout=0.2", variables=ends), RELIGHT, tmp_path / "ours")
    assert found.exit_code == 7
    assert "  rank 0: stopped by the agent (SIGKILL)" in found.says


@shows("second-signal")
def test_second_signal_ends_the_grace_period(begin: Begin) -> None:
    launcher, pid = begin(RELIGHT, Case("", ("--shutdown-timeout=600",), variables=STAYING))
    launcher.send_signal(signal.SIGTERM)
    wait_until(lambda: is_pending(pid, signal.SIGTERM), "the signal was not passed on")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(LIMIT_S) == 143
    assert not is_alive(pid)


def is_pending(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(int(masks[0], 16) >> (number - 1) & 1)


@shows("orphans")
@pytest.mark.needs_torch
def test_no_worker_outlives_killed_launcher(begin: Begin) -> None:
    """Torchrun's workers keep running."""
    torchrun, left_behind = begin(TORCHRUN, Case("", variables=WAITING))
    relight, ours = begin(RELIGHT, Case("", variables=WAITING))
    for launcher in (torchrun, relight):
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not is_alive(ours), "the worker outlives relight")
    assert is_alive(left_behind)


@shows("sigusr1")
@pytest.mark.needs_torch
def test_sigusr1_ends_neither_launcher_nor_workers(begin: Begin) -> None:
    """The signal kills torchrun, whose workers keep running; relight forwards it and continues."""
    torchrun, left_behind = begin(TORCHRUN, Case("", variables=WAITING))
    torchrun.send_signal(signal.SIGUSR1)
    assert torchrun.wait(LIMIT_S) == -signal.SIGUSR1
    assert is_alive(left_behind)
    relight, _ = begin(RELIGHT, Case("", variables=WAITING))
    relight.send_signal(signal.SIGUSR1)
    relight.send_signal(signal.SIGTERM)
    assert relight.wait(LIMIT_S) == 143


@shows("closed-console")
@pytest.mark.parametrize("closed", [[1], [2], [0, 1, 2]], ids=str)
def test_closed_console_does_not_stop_job(closed: list[int], tmp_path: Path) -> None:
    """Workers can write even if the launcher lacks stdout or stderr."""
    found = record(Case("", under={"close": closed}), RELIGHT, tmp_path / "ours")
    assert found.exit_code == 0
    assert list(found.workers) == ["0.0"]
    assert found.left == []


ALL_FAIL = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = f"launched by {os.getppid()}, rank "
open(here + os.environ["RANK"], "w").close()
while sum(each.startswith(here) for each in os.listdir()) < 3:
    time.sleep(0.01)
raise ValueError('bad')
"""
"""Every rank fails before it is stopped, no matter which one fails first."""


@shows("last-traceback")
@pytest.mark.needs_torch
@pytest.mark.parametrize(("launcher", "times"), [(RELIGHT, 1), long(TORCHRUN, 3)])
def test_identical_tracebacks_appear_once_on_the_terminal(
    start: Start, tmp_path: Path, launcher: str, times: int
) -> None:
    """Under torchrun, each worker prints its own traceback, and the failure box contains none."""
    (tmp_path / "train.py").write_text(ALL_FAIL)
    terminal = Terminal(columns=200)
    agent = start(
        "--nproc-per-node=3", "train.py", command=COMMANDS[launcher], variables={"NO_COLOR": "1"},
        stdout=terminal.agents_end, stderr=terminal.agents_end,
    )  # fmt: skip
    assert terminal.read_to_end(agent).count(b"\nValueError: bad\r\n") == times
    terminal.close()


@shows("repeated-lines")
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("launcher", "times"), [(RELIGHT, range(20, 40)), long(TORCHRUN, range(40, 41))]
)
def test_identical_lines_from_several_ranks_appear_once_on_the_terminal(
    start: Start, tmp_path: Path, launcher: str, times: range
) -> None:
    """Torchrun's workers mix their lines there, so the lines are counted wherever they start."""
    (tmp_path / "train.py").write_text(TICKS)
    terminal = Terminal()
    agent = start(
        "--nproc-per-node=2", "train.py", command=COMMANDS[launcher],
        stdout=terminal.agents_end, stderr=terminal.agents_end,
    )  # fmt: skip
    assert len(re.findall(rb"(?<!\] )tick", terminal.read_to_end(agent))) in times
    terminal.close()
