"""Jobs that are running while relight is upgraded: its files are removed or replaced."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import LIMIT_S, PORTABLE, Launch, Start, clean_environment, long
from etcd_server import free_ports

import relight
from relight.agent import agent

WORKER = """
import os, signal, sys, time
restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
signal.signal(signal.SIGUSR1, lambda *_: print(f"worker {rank} got SIGUSR1", flush=True))
print(f"worker {rank} restart {restart}", flush=True)
while True:
    if rank == "0" and os.path.exists(f"fail-{restart}"):
        raise ValueError("no such batch")
    time.sleep(0.02)
"""
PACKAGE = Path(relight.__file__).parent
LAST_MODULE = agent._LOADED_LATER[-1]


class Copy:
    """A copy of relight that runs a job."""

    def __init__(self, path: Path) -> None:
        self.variables = {"PYTHONPATH": str(path)}
        self._package = path / "relight"
        shutil.copytree(PACKAGE, self._package)

    def remove(self) -> None:
        """Remove it, like `pip uninstall`."""
        shutil.rmtree(self._package)

    def replace(self) -> None:
        """Replace it with a version in which all names have changed."""
        for compiled in list(self._package.rglob("__pycache__")):
            shutil.rmtree(compiled)
        for file in self._package.rglob("*.py"):
            file.write_text("another_name = True\n")


CHANGES: dict[str, Callable[[Copy], None]] = {"removed": Copy.remove, "replaced": Copy.replace}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "site")


class RunningAgent:
    """An agent that runs from a copy, with its output in a file."""

    def __init__(self, start: Start, copy: Copy, output: Path, *words: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = start(
                *words, command=(sys.executable, "-X", "importtime", "-m", "relight"),
                variables=copy.variables, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.job = f"train-{self.process.pid}"

    @property
    def text(self) -> str:
        lines = self._output.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("import time:"))

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed something that matches a pattern."""
        end = time.monotonic() + LIMIT_S
        while True:
            text = self._output.read_text(errors="replace")
            if (found := re.search(pattern, text, re.MULTILINE)) is not None:
                return found
            assert self.process.poll() is None, (pattern, self.text)
            assert time.monotonic() < end, (pattern, self.text)
            time.sleep(0.05)

    def wait_until_loaded(self) -> None:
        """Wait until it has loaded everything that it may need."""
        self.wait_for(rf"^import time:.*\| +{re.escape(LAST_MODULE)}$")


def query_all_commands(launch: Launch, job: str) -> None:
    """Run all commands that query a job's agent, and check that each gets an answer."""
    expected = {
        ("status",): "train",
        ("status", "--json"): "train",
        ("status", job): "RUNNING",
        ("status", "--json", job): '"RUNNING"',
        ("top", "--once", job): "worker",
        ("logs", job): "restart 0",
        ("events", job): "WorkerStarted",
        ("stacks", job): "train.py",
    }
    for words, answer in expected.items():
        done = launch(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert answer in done.stdout, (words, done.stdout, done.stderr)


@pytest.mark.parametrize("change", [long("removed"), "replaced"])
@pytest.mark.long
def test_single_node_job_survives_relight_upgrade(
    change: str, copy: Copy, launch: Launch, start: Start, script: Callable[[str], Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Commands, signals, failures, and restarts still work."""
    flags = ("run", "--nproc-per-node=2", "--max-restarts=1", "--run-path")
    one = RunningAgent(start, copy, tmp_path / "output", *flags, str(script(WORKER)))
    one.wait_for("worker 1 restart 0")
    one.wait_until_loaded()
    CHANGES[change](copy)
    query_all_commands(launch, one.job)
    one.process.send_signal(signal.SIGUSR1)
    one.process.send_signal(signal.SIGWINCH)
    one.wait_for("worker 1 got SIGUSR1")
    (tmp_path / "fail-0").touch()
    one.wait_for("worker 1 restart 1")
    assert "worker 1 restart 1" in launch("status", one.job).stdout
    (tmp_path / "fail-1").touch()
    assert one.process.wait(LIMIT_S) == 1
    assert "ValueError: no such batch" in one.text
    assert "internal error" not in one.text
    assert "FAILED" in launch("status", one.job).stdout


@pytest.mark.parametrize("change", [long("removed"), "replaced"])
def test_two_node_job_survives_relight_upgrade(
    change: str, copy: Copy, launch: Launch, start: Start, script: Callable[[str], Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The coordinator and the other node respond, restart, and stop when signalled."""
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_ports(1)[0]}"
    words = ("run", "--nnodes=1:2", "--rdzv-backend=c10d", endpoint, "--max-restarts=2")
    words = (*words, "--rdzv-conf=last_call_timeout=1", str(script(WORKER)))
    nodes = [RunningAgent(start, copy, tmp_path / f"output{n}", *words) for n in range(2)]
    for node in nodes:
        node.wait_for("worker . restart 0")
        node.wait_until_loaded()
    CHANGES[change](copy)
    for node in nodes:
        query_all_commands(launch, node.job)
    for node in nodes:
        node.process.send_signal(signal.SIGUSR1)
        node.wait_for("got SIGUSR1")
    (tmp_path / "fail-0").touch()
    for node in nodes:
        node.wait_for("worker . restart 1")
    for node in nodes:
        assert "ValueError: no such batch" in node.text
    nodes[0].process.send_signal(signal.SIGTERM)
    assert nodes[0].process.wait(LIMIT_S) == 143
    nodes[1].process.send_signal(signal.SIGINT)
    assert nodes[1].process.wait(LIMIT_S) == 130
    assert not any("internal error" in node.text for node in nodes)


@pytest.mark.skipif(PORTABLE, reason="--preload needs Linux")
@pytest.mark.parametrize("change", ["removed", long("replaced")])
def test_workers_start_cold_if_preloader_is_lost_after_upgrade(
    change: str, copy: Copy, start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """A new preloader would run a different version's files, or find none."""
    flags = ("run", "--preload=json", "--max-restarts=3", "--verbose")
    one = RunningAgent(start, copy, tmp_path / "output", *flags, str(script(WORKER)))
    ready = one.wait_for(r"preload: pid (\d+) is ready")
    one.wait_until_loaded()
    CHANGES[change](copy)
    (tmp_path / "fail-0").touch()
    one.wait_for("workers start with preloaded modules")
    one.wait_for("worker 0 restart 1")
    os.kill(int(ready[1]), signal.SIGKILL)
    one.wait_for("the files of relight have changed since this job started")
    one.wait_for("worker 0 restart [23]")
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(LIMIT_S) == 143, one.text


SAVES = """
import sys, time
from relight.worker import progress, should_checkpoint
print("training", flush=True)
step = 0
while True:
    progress(step)
    step += 1
    if should_checkpoint():
        print("saved", flush=True)
        sys.exit(0)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("change", [long("removed"), "replaced"])
def test_preempted_job_can_checkpoint_after_upgrade(
    change: str, copy: Copy, start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """The script has imported `relight.worker`, which loads nothing else."""
    one = RunningAgent(start, copy, tmp_path / "output", "run", str(script(SAVES)))
    one.wait_for("training")
    one.wait_until_loaded()
    CHANGES[change](copy)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(LIMIT_S) == 75, one.text
    assert "saved" in one.text


@pytest.mark.parametrize("change", [long("removed"), "replaced"])
def test_submitted_job_ends_normally_after_upgrade(
    change: str, copy: Copy, launch: Launch, start: Start, tmp_path: Path
) -> None:
    """The process that runs it finds out why a replica failed."""
    state = {"RELIGHT_STATE_DIR": str(tmp_path / "state")}
    wait = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo no such batch >&2; exit 3"
    words = ("submit", "-s", "local", "--wait", "utils.sh", "--", "sh", "-c", wait)
    submitted = start(*words, variables={**copy.variables, **state}, stdout=subprocess.PIPE)
    assert submitted.stdout is not None
    job = submitted.stdout.readline().decode().strip()
    while "begun" not in launch("logs", job, **state).stdout:
        assert submitted.poll() is None
    CHANGES[change](copy)
    (tmp_path / "go").touch()
    assert launch("wait", job, **state).returncode == 3
    shown = launch("status", job, **state).stdout
    assert "no such batch" in shown
    assert "killed" not in shown
    assert submitted.wait(LIMIT_S) == 3, submitted.stderr


LOADED = {
    "relight.agent.agent": """
from relight.agent import agent, link
from relight.agent.status import inspector as sight
modules = *agent._LOADED_FOR_NODES, *agent._LOADED_FOR_RESTARTS, *agent._LOADED_LATER
""",
    "relight.cli.coordinator": """
from relight.cli import coordinator
modules = *coordinator.LOADED_FOR_NODES, *coordinator.LOADED_LATER
""",
}
IMPORT = """
import sys
for module in modules:
    __import__(module)
print(*sys.modules)
"""
LOADED_BEFORE = {
    "relight.flags.suggestions": "a wrong flag",
    "relight.flags.usage": "--help",
    "relight.agent.failure_report": "--failure-report",
    "relight.agent.health_check": "--health-check",
    "relight.agent.bad_node": "--bad-nodes",
    "relight.base.metric_patterns": "--watch-metric",
    "relight.base.trackers": "--tracker",
    "relight.host.checkpoints": "--checkpoints",
    "relight.agent.event_process": "--event-log-handler",
    "relight.host.env_fingerprint": "several nodes",
    "relight.output.file_tails": "--tee",
    "relight.output.log_filters": "--tee",
    "relight.warm.preloading": "--preload",
    "relight.warm.background_preload": "--max-restarts",
    "relight.stacks.wait_sampler": "--watch-slow-ranks",
    "relight.net.tls": "tls_cert",
    "relight.job.components.dist": "a wrong flag",
    "relight.agent.network_check": "--health-check=network",
    "relight.rendezvous.backends": "a register",
    "relight.rendezvous.etcd": "a register",
    "relight.rendezvous.file": "a register",
    "relight.rendezvous.election_finder": "an endpoint with several hosts",
    "relight.rendezvous.endpoint_finder": "several nodes",
    "relight.rendezvous.register_finder": "a register",
    "relight.rendezvous.topology": "--rank-order=topology",
    "relight.agent.status.page_process": "--status",
    "relight.agent.status.status_file": "RELIGHT_JOB_ID",
}
"""Already loaded by then, if at all, because of a flag or the job's environment."""
DONE_WITHOUT = {
    "relight.health.endpoint",
    "relight.base.notebook_traceback",
    "relight.core.workers.repeated_lines",
}
"""The caller of the first one catches every exception, IPython calls the second one, and a
coordinator without an agent shows no output of workers.
"""


@pytest.mark.parametrize("module", LOADED)
def test_running_agent_or_coordinator_imports_no_further_relight_modules(module: str) -> None:
    """Imports inside functions in an agent or coordinator find their modules already loaded."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED[module] + IMPORT],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=clean_environment(),
    )
    loaded = set(done.stdout.split())
    late = {each: path for path in closure(module) for each in late_imports(path)}
    missing = {each: str(path) for each, path in late.items() if each not in loaded}
    unexpected = missing.keys() - LOADED_BEFORE.keys() - DONE_WITHOUT
    assert not unexpected, missing


def closure(module: str) -> set[Path]:
    """Return the files of all relight modules that a module may import, directly or indirectly."""
    found, left = set[Path](), [module]
    while left:
        path = source_file(left.pop())
        if path is not None and path not in found:
            found.add(path)
            left += [name for name, _ in imports(path)]
    return found


def late_imports(path: Path) -> set[str]:
    """Return the relight modules that functions in a file import."""
    return {name for name, is_late in imports(path) if is_late and source_file(name)}


def source_file(module: str) -> Path | None:
    if not module.startswith("relight."):
        return None
    base = PACKAGE.joinpath(*module.split(".")[1:])
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.exists()), None)


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return the modules that a file imports, and whether it does so inside a function."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, *, late: bool) -> None:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                return
            case ast.Import(names):
                found.extend((each.name, late) for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                submodules = [f"{module}.{each.name}" for each in names]
                known = [name for name in submodules if source_file(name)]
                found.extend((name, late) for name in known or [module])
        late = late or isinstance(node, ast.FunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, late=late)

    visit(ast.parse(path.read_text()), late=False)
    return found
