"""Fixtures that run the installed command on real processes and clean up afterwards."""

import gc
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import needs
import pure
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from warm_torch import TorchProcess, WarmTorch

# How long an example takes only shows how busy the machine is.
settings.register_profile(
    "tests", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

# `make portable`: run what runs on other systems, on a Linux that imitates macOS (tests/portable).
PORTABLE = os.environ.get("RELIGHT_TESTS") == "portable"
_FAKE = (sys.executable, str(Path(__file__).parent / "portable" / "fake_system.py"), "darwin")
RELIGHT = _FAKE if PORTABLE else (sys.executable, "-m", "relight")
if PORTABLE:  # in this process, relight believes it is on macOS and Python on Linux
    from portable import fake_system

    import relight.host
    from relight.host import portable as portable_system

    relight.host.system = portable_system  # type: ignore[assignment]
    fake_system.start_nested("darwin")
    from relight.api import function

    function.warm_flags = lambda *_: []
FIRST_WARM = (
    sys.executable, "-c",
    "from relight.warm import preloading; preloading._waits = lambda *_: True\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""The first generation waits for named modules, as on a machine with few processors."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

# The process that started the tests may ignore these signals (nohup, a shell without job control).
# Children inherit that, and the launchers under test would behave differently.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


LIMIT_S = 180.0
"""The longest time that a test waits for an event. Speed belongs in benchmarks/, not here."""

_LONGEST = (
    "tests/nodes/test_failures.py",
    "tests/pytest_plugin/test_plugin.py",
    "tests/nodes/test_registers.py",
    "tests/warm/test_processes.py",
    "tests/schedulers/test_kubernetes.py",
    "tests/schedulers/test_ssh.py",
    "tests/nodes/test_network.py",
    "tests/test_failures_on_nodes.py",
    "tests/nodes/test_security.py",
    "tests/schedulers/test_docker.py",
    "tests/rendezvous/test_etcd.py",
    "tests/test_examples.py",
    "tests/differential/test_command_lines.py",
    "tests/test_upgrade.py",
    "tests/doctor/test_between_hosts.py",
    "tests/rendezvous/test_contract.py",
    "tests/warm/test_auto.py",
    "tests/test_hangs.py",
    "tests/test_failures_e2e.py",
    "tests/nodes/test_coordinator.py",
    "tests/test_watch_slow_ranks.py",
    "tests/clusters/test_slurm.py",
    "tests/nodes/test_takeover.py",
    "tests/schedulers/test_kubernetes_in_pod.py",
    "tests/release/test_release.py",
    "tests/warm/test_endings.py",
    "tests/nodes/test_identity.py",
    "tests/nodes/test_forming.py",
    "tests/schedulers/test_aws_batch.py",
    "tests/cli_jobs/test_run_jobs.py",
    "tests/sight/test_page_in_a_browser.py",
    "tests/test_survivors.py",
    "tests/host/test_tcp_store.py",
    "tests/schedulers/test_slurm.py",
    "tests/core/test_election.py",
    "tests/cli_jobs/test_reading.py",
    "tests/host/test_stacks.py",
    "tests/old_systems/test_old_systems.py",
    "tests/schedulers/test_kubernetes_submit_ends.py",
    "tests/test_tracebacks_once.py",
    "tests/test_function.py",
    "tests/nodes/test_endings.py",
    "tests/schedulers/test_plug_in.py",
    "tests/test_run.py",
    "tests/simulation/test_seeds.py",
    "tests/warm/test_faults.py",
    "tests/cli_jobs/test_submit.py",
    "tests/test_layers.py",
    "tests/test_logs.py",
)
"""If these files started last, a single processor would have to finish them alone."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of needs.py, and watch the pure tests."""
    config.pluginmanager.register(pure.Guard())
    for name in needs.NEEDS:
        config.addinivalue_line("markers", f"needs_{name}: needs {needs.WHAT.get(name, name)}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, which would scan thousands of tests repeatedly and
    take a third of the time. It ignores them from then on.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files; mark pure tests; where other systems are imitated, skip those
    that require Linux.
    """
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(_LONGEST)))
    for item in items:
        if pure.is_pure(item):
            item.add_marker(pytest.mark.pure)
    if not PORTABLE:
        return
    from portable import exceptions

    for item in items:
        if why := exceptions.reason(item.nodeid):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose needs are not met. Each test process checks only what its tests need."""
    for mark in item.iter_markers():
        name = mark.name.removeprefix("needs_")
        if name != mark.name and (why := needs.missing(name)):
            pytest.skip(why)


@pytest.fixture(scope="session", autouse=True)
def _mistakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to which all relight processes append their internal errors."""
    file = tmp_path_factory.getbasetemp() / "mistakes"
    os.environ["RELIGHT_MISTAKES"] = str(file)
    return file


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep relight's cache for later jobs out of the user's own cache directory."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="session", autouse=True)
def _warm_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep processes that outlive jobs separate from the user's, and end them."""
    folder = tmp_path_factory.getbasetemp() / "runtime"
    folder.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    yield
    if any(folder.iterdir()):
        subprocess.run([*RELIGHT, "warm", "stop"], env=clean_environment(), check=False)


@pytest.fixture(autouse=True)
def _no_mistakes(_mistakes: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail each test in which relight has an internal error, unless it is marked `mistakes`."""
    yield
    if _mistakes.exists():
        text = _mistakes.read_text()
        _mistakes.unlink()
        if request.node.get_closest_marker("mistakes") is None:
            pytest.fail(f"relight has made mistakes:\n{text}", pytrace=False)


def _as_tested(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command whose Python runs relight like the other tests."""
    if not PORTABLE or command[0] != sys.executable or command[1:3] == _FAKE[1:]:
        return command
    options = 3 if command[1] == "-X" else 1
    return (*command[:options], *_FAKE[1:], "python", *command[options:])


def long(*values: object) -> object:
    """Return parameters of a test that only `make long` runs: others have most of its promise."""
    return pytest.param(*values, marks=pytest.mark.long)


Launch = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process without variables that affect a launcher."""
    hidden = ("PET_", "TORCHELASTIC_", "RELIGHT_", "OMP_NUM_THREADS", "COV_", "PYTEST_")
    hidden += ("CI", "BUILD_NUMBER")  # pytest does not shorten messages if one of them is set
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment["RELIGHT_MISTAKES"] = os.environ.get("RELIGHT_MISTAKES", "")
    return {**environment, **variables}


def _is_forked(
    request: pytest.FixtureRequest, command: tuple[str, ...], variables: dict[str, str]
) -> bool:
    mark = request.node.get_closest_marker("forked")
    is_marked = mark is not None and mark.args != (False,)
    return is_marked and command is RELIGHT and not PORTABLE and forked.fits(variables)


@pytest.fixture
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Launch:
    """Run a relight command line to its end: `launch("run", "x.py", OMP_NUM_THREADS="2")`."""

    def run(
        *arguments: str | Path,
        command: tuple[str, ...] = RELIGHT,
        timeout: float = LIMIT_S,
        cwd: Path | None = None,
        stdin: str = "",
        **variables: str,
    ) -> "subprocess.CompletedProcess[str]":
        words, environment = [*map(str, arguments)], clean_environment(**variables)
        if _is_forked(request, command, variables) and not stdin:
            return forked.run(words, cwd or tmp_path, environment, timeout)
        return subprocess.run(
            [*_as_tested((*command, *words))],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            cwd=cwd or tmp_path,
            input=stdin,
            env=environment,
            check=False,
        )

    return run


@pytest.fixture
def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Launch:
    """Run a client command in this process, which takes a tenth of the processor time:
    `in_process("list", HOME="/")`.
    """
    from relight.cli.main import main

    def run(
        *words: str | Path, cwd: Path | None = None, stdin: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        def fail(*_: object) -> None:
            pytest.fail(f"relight {' '.join(map(str, words))}: not over after {LIMIT_S} s")

        on_term = signal.getsignal(signal.SIGTERM)  # some commands set it
        with monkeypatch.context() as patch, _alarm(LIMIT_S, fail):
            for name in os.environ.keys() - clean_environment().keys():
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.chdir(cwd or tmp_path)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            try:
                code = main([*map(str, words)])
            except SystemExit as end:  # raised by --help
                code = int(end.code or 0)
            finally:
                signal.signal(signal.SIGTERM, on_term)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@contextmanager
def _alarm(after_s: float, handler: Callable[..., None]) -> Iterator[None]:
    """Call a function if the block runs longer. Suspends the timer of pytest-timeout."""
    before = signal.signal(signal.SIGALRM, handler)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, before)


def wait_for_event(agent: "subprocess.Popen[bytes]", logs: Path, name: str) -> None:
    """Wait until a running agent has recorded an event in its log directory."""
    deadline = time.monotonic() + LIMIT_S
    while not any(f'"{name}"' in x.read_text() for x in logs.glob("*/events.jsonl")):
        assert time.monotonic() < deadline
        assert agent.poll() is None
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a relight command line in its own session; it is killed at the end."""
    processes: list[Any] = []

    def begin(
        *arguments: str | Path,
        command: tuple[str, ...] = RELIGHT,
        cwd: Path | None = None,
        variables: dict[str, str] | None = None,
        **options: Any,
    ) -> Any:
        defaults = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        }
        variables = variables or {}
        words, environment = [*map(str, arguments)], clean_environment(**variables)
        if _is_forked(request, command, variables) and options.keys() <= defaults.keys():
            process: Any = forked.start(words, cwd or tmp_path, environment, **options)
        else:
            process = subprocess.Popen(
                [*_as_tested((*command, *words))],
                cwd=cwd or tmp_path,
                env=environment,
                start_new_session=True,
                **{**defaults, **options},
            )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a training script and return its path."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def torch_process() -> "Iterator[TorchProcess]":
    """The warm process with torch, shared by all files."""
    from warm_torch import TorchProcess

    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:  # fixed path length
        yield TorchProcess(Path(path))


@pytest.fixture
def warm_torch(torch_process: "TorchProcess", launch: Launch, start: Start) -> "WarmTorch":
    """Warm torch workers, which assert that they are warm."""
    from warm_torch import WarmTorch

    return WarmTorch(torch_process, launch, start)
