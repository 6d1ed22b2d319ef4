"""Launching imports only a fixed list of modules, because each costs milliseconds. Modules for the
end of a job are imported while workers run.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment
from etcd_server import free_ports

# What `relight run` imports beyond a bare interpreter in a successful job.
OWN = {
    "relight",
    "relight.agent",
    "relight.agent.agent",
    "relight.agent.agent_config",
    "relight.agent.checks",
    "relight.agent.entrypoint",
    "relight.agent.group",
    "relight.agent.node",
    "relight.agent.preemption",
    "relight.agent.prepare",
    "relight.agent.start",
    "relight.agent.worker_group",
    "relight.base",
    "relight.base.env",
    "relight.base.errors",
    "relight.base.package",
    "relight.base.text",
    "relight.base.values",
    "relight.cli",
    "relight.cli.main",
    "relight.cli.run",
    "relight.core",
    "relight.core.failure",
    "relight.core.group",
    "relight.core.group.admission",
    "relight.core.group.foreign_leases",
    "relight.core.group.formation",
    "relight.core.group.group_messages",
    "relight.core.group.group_types",
    "relight.core.group.live_generation",
    "relight.core.group.members",
    "relight.core.group.membership",
    "relight.core.group.messages",
    "relight.core.group.node_ranks",
    "relight.core.group.node_recovery",
    "relight.core.group.restarts",
    "relight.core.group.roster",
    "relight.core.group.silence",
    "relight.core.group.successes",
    "relight.core.group.teardown",
    "relight.core.group.transitions",
    "relight.core.group.wait_reports",
    "relight.core.ranks",
    "relight.core.workers",
    "relight.core.workers.shared_words",  # at the end: did a worker report a step?
    "relight.core.workers.supervision",
    "relight.core.workers.worker_command",
    "relight.events",
    "relight.events.event_types",
    "relight.flags",
    "relight.flags.arguments",
    "relight.flags.site",
    "relight.flags.spec",
    "relight.host",
    "relight.host.descriptors",
    "relight.base.exit_signals",
    "relight.host.files",
    "relight.host.linux",
    "relight.host.loop",
    "relight.host.oom_detector",
    "relight.host.process_handle",
    "relight.host.scratch",
    "relight.net",
    "relight.net.ports",
    "relight.net.store_port",
    "relight.output",
    "relight.output.console",
    "relight.output.journal",
    "relight.output.pipe_reader",
    "relight.output.worker_logs",
    "relight.processes",
    "relight.processes.generation_pipe",
    "relight.processes.interpreter",
    "relight.processes.spawner",
    "relight.processes.supervisor",
    "relight.processes.worker_processes",
}
STANDARD = {
    "_collections", "_ctypes", "_functools", "_heapq", "_operator", "_posixsubprocess",
    "_socket", "_sre", "_struct", "_typing", "array", "collections", "collections.abc",
    "contextlib", "copyreg", "ctypes", "ctypes._endian", "enum", "errno", "functools", "gc",
    "heapq", "itertools", "keyword", "math", "operator", "re", "re._casefix", "re._compiler",
    "re._constants", "re._parser", "reprlib", "select", "selectors", "signal", "socket",
    "struct", "types", "typing", "typing.io", "typing.re", "warnings",
}  # fmt: skip

if sys.version_info >= (3, 14):  # imported by ctypes
    STANDARD |= {"_contextvars", "_types", "_weakrefset", "io", "sysconfig", "threading"}

PROBE = """
import sys
before = set(sys.modules)
from relight.cli.main import main
code = main(["run", "--no-python", "true"])
print(code, *sorted(set(sys.modules) - before))
"""


def test_starting_a_job_imports_only_listed_modules(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-I", "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    code, *modules = result.stdout.split()
    assert code == "0", result.stderr
    assert {name for name in modules if name.startswith("relight")} == OWN
    extra = {name for name in modules if not name.startswith("relight")} - STANDARD
    assert not extra, f"new on the launch path: {sorted(extra)}"


FAILS = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    raise ValueError("no such file")
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_running_job_imports_no_modules_when_worker_fails(restarts: int, tmp_path: Path) -> None:
    """Restarts don't wait for imports, and the disk may no longer be available. The code that reads
    stacks is only loaded after a peer has failed, or on a terminal.
    """
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(FAILS)
    command = [sys.executable, "-X", "importtime", "-m", "relight", "run"]
    with subprocess.Popen(
        [*command, f"--max-restarts={restarts}", str(script), str(go)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:") and line.split()[-1] == "relight.agent.recovery":
                break  # the last one
        go.touch()
        rest = process.stderr.read().splitlines()
    assert process.returncode == (0 if restarts else 1)
    later = {line.split()[-1] for line in rest if line.startswith("import time:")}
    assert later <= {"atexit"}


def test_nodes_load_openssl_only_after_workers_start(tmp_path: Path) -> None:
    """`hashlib` loads it within 2 ms, before a late heartbeat requires it, because the file server
    may be unreachable whenever the network is. On a busy machine, an earlier late heartbeat loads
    it.
    """
    assert any(not loads_openssl_early(tmp_path) for _ in range(10))


def loads_openssl_early(tmp_path: Path) -> bool:
    """Return whether an agent in a two-node job loads it before its worker runs."""
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-X", "importtime", "-m", "relight", "run", "--nnodes=2"]
    with contextlib.ExitStack() as stack:
        agents = []
        for _ in range(2):
            agent = subprocess.Popen(
                [*command, "--rdzv-backend=c10d", endpoint, str(script)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=tmp_path,
                env=clean_environment(),
            )
            agents.append(stack.enter_context(agent))
            stack.callback(agent.kill)
        is_early = False
        for agent in agents:
            assert agent.stdout is not None
            before = loaded_until(agent.stdout, "begun")
            assert "relight.agent.agent" in before
            is_early |= "hashlib" in before
            later = loaded_until(agent.stdout, "relight.agent.recovery")
            needed = {"hashlib", "relight.net.heartbeats", "relight.agent.coordinator"}
            assert needed <= before | later
    return is_early


WAITS_AND_FAILS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
os._exit(3)
"""


def test_coordinator_imports_no_modules_when_node_fails(tmp_path: Path) -> None:
    """Like an agent, `relight coordinator` may outlive the file server that it was loaded from."""
    script = tmp_path / "train.py"
    go = tmp_path / "go"
    script.write_text(WAITS_AND_FAILS)
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    relight = [sys.executable, "-m", "relight"]
    run = [*relight, "run", "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
    run += ["--rdzv-conf=is_host=0,last_call_timeout=0.1", "--max-restarts=1", str(script), str(go)]
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *relight[1:], "coordinator", f"--bind={endpoint}"],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as coordinator:
        try:
            assert coordinator.stderr is not None
            assert "relight.core.group.restart_decision" in loaded_until(
                coordinator.stderr, endpoint
            )
            first, second = (
                subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env=clean_environment())
                for _ in range(2)
            )
            assert second.stderr is not None
            assert any("2 workers on 2 nodes" in line for line in second.stderr)
            first.kill()
            first.wait(LIMIT_S)
            go.touch()
            for agent in (first, second):
                agent.communicate(timeout=LIMIT_S)
            assert (first.returncode, second.returncode) == (-9, 3)
        finally:
            coordinator.terminate()
        rest = coordinator.stderr.read().splitlines()
    assert {line.split()[-1] for line in rest if line.startswith("import time:")} <= {"atexit"}


def loaded_until(lines: Iterable[str], last_word: str) -> set[str]:
    """Return the modules listed by -X importtime before a line that ends with this word."""
    modules = set()
    for line in lines:
        words = line.split()
        if line.startswith("import time:"):
            modules.add(words[-1])
        if words and words[-1] == last_word:
            return modules
    raise AssertionError(f"no line that ends with {last_word}, after {sorted(modules)}")
