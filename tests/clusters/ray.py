"""A multi-node Ray cluster on this machine: each node is a separate `ray start`, from 127.0.0.2 up.

Ray replaces 127.0.0.1 with one of the machine's external addresses. `ray stop` would end all Ray
processes on the machine, so the process groups are ended instead.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from conftest import LIMIT_S
from etcd_server import free_ports

from relight.host import linux

PYTHON = os.environ.get("RAY_OF_TEST") or sys.executable
"""The Python that runs the nodes; set RAY_OF_TEST=/path/to/python to test another Ray version."""
_OBJECTS = 80 << 20


def ray_unavailable() -> str:
    """Return why ray[default] is missing here; plain `ray` lacks the dashboard."""
    from importlib.util import find_spec

    found = sys.executable != PYTHON or all(map(find_spec, ("ray", "aiohttp_cors", "opencensus")))
    return "" if found else "no Python package ray[default]"


class RayCluster:
    """A cluster's nodes. Its directory has a short path, because Ray creates sockets in it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ray-")
        self.directory = Path(self._folder.name)
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._options: dict[int, tuple[int, str]] = {}
        self._gcs = f"127.0.0.2:{free_ports(1, '127.0.0.2')[0]}"
        self.dashboard = f"127.0.0.1:{free_ports(1)[0]}"

    def start(self, cpus: int = 1) -> None:
        """Start the head as node 2, and wait for its dashboard and job agent."""
        host, _, port = self._gcs.partition(":")
        where, _, dashboard_port = self.dashboard.partition(":")
        words = ["--head", f"--port={port}", f"--dashboard-host={where}"]
        words += [f"--dashboard-port={dashboard_port}"]
        words += [f"--ray-client-server-port={free_ports(1, host)[0]}", "--include-dashboard=true"]
        self._start_until(2, host, words, cpus, self._has_dashboard)

    def add(self, number: int, cpus: int = 1, resources: str = "{}") -> None:
        """Start a node with the address 127.0.0.NUMBER, and wait until the cluster knows it."""
        self._options[number] = cpus, resources
        words = [f"--address={self._gcs}", f"--resources={resources}"]
        address = f"127.0.0.{number}"
        before = self._ids(address)
        self._start_until(number, address, words, cpus, lambda: self._ids(address) - before)

    def kill(self, number: int) -> None:
        """End all processes of a node together, as if its machine were lost."""
        node = self._nodes.pop(number)
        below = _descendants(node.pid)  # Ray's processes hide their variables by changing titles
        _kill(node.pid)
        node.wait()
        while pids := [*filter(_is_alive, below), *of_variable(self.mark(number))]:
            for pid in pids:
                _kill(pid)

    def restore(self, *numbers: int) -> None:
        """Make sure that exactly the head and these nodes are running, whatever a test has done to
        them. They must have been added before.
        """
        for number in set(self._nodes) - {2, *numbers}:
            self.kill(number)
        for number in numbers:
            if not self._is_alive(number):
                if number in self._nodes:
                    self.kill(number)
                self.add(number, *self._options[number])

    def mark(self, number: int) -> str:
        """The variable that all processes of a node inherit."""
        return f"NODE_OF_TEST={self.directory}/{number}"

    def close(self) -> None:
        """End all nodes."""
        for number in sorted(self._nodes, reverse=True):
            self.kill(number)
        self._folder.cleanup()

    def _is_alive(self, number: int) -> bool:
        """Whether the cluster knows a node, or will shortly: the dashboard may lag behind."""
        end = time.monotonic() + LIMIT_S / 6
        while number in self._nodes and self._nodes[number].poll() is None:
            if self._ids(f"127.0.0.{number}"):
                return True
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return False

    def _start_until(
        self,
        number: int,
        address: str,
        words: list[str],
        cpus: int,
        is_ready: Callable[[], object],
    ) -> None:
        """Start a node, and retry as long as it exits: on a busy machine, `ray start` gives up
        after 30 s, or the raylet aborts.
        """
        end = time.monotonic() + LIMIT_S
        while True:
            self._start(number, address, words, cpus)
            while self._nodes[number].poll() is None:
                if is_ready():
                    return
                assert time.monotonic() < end, (self.directory / f"node-{number}.log").read_text()
                time.sleep(0.1)
            assert time.monotonic() < end, (self.directory / f"node-{number}.log").read_text()
            self.kill(number)

    def _start(self, number: int, address: str, words: list[str], cpus: int) -> None:
        programs = os.path.dirname(PYTHON)
        command = [PYTHON, "-m", "ray.scripts.scripts", "start", "--block", *words]
        command += [f"--node-ip-address={address}", f"--num-cpus={cpus}", "--num-gpus=0"]
        command += [f"--temp-dir={self.directory}/{number}"]  # nodes share no files
        command += [f"--object-store-memory={_OBJECTS}", f"--memory={8 << 30}"]
        command += ["--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
        named = (
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "metrics-export-port",
            "runtime-env-agent-port",
        )
        ports = free_ports(len(named), address)
        command += [f"--{name}={port}" for name, port in zip(named, ports, strict=True)]
        hidden = ("RAY_", "RELIGHT_", "PYTEST_", "COV_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        own |= {
            "PATH": f"{programs}{os.pathsep}{own.get('PATH', '')}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_MEMORY_MONITOR": "1",
            "RAY_enable_metrics_collection": "0",
            "RAY_health_check_period_ms": "500",
            # A killed raylet refuses the connection. One that merely responds late is alive, but
            # would be removed from the cluster for good.
            "RAY_health_check_timeout_ms": str(int(LIMIT_S * 1000)),
            "RAY_worker_register_timeout_seconds": str(int(LIMIT_S)),
            "RAY_health_check_failure_threshold": "3",
        }
        name, _, value = self.mark(number).partition("=")
        own[name] = value
        with open(self.directory / f"node-{number}.log", "wb") as log:
            self._nodes[number] = subprocess.Popen(
                command,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(linux.die_with_parent, signal.SIGTERM),
            )

    def _ids(self, address: str) -> set[str]:
        """Return the IDs of the nodes with an address; empty if the dashboard does not respond."""
        try:
            url = f"http://{self.dashboard}/nodes?view=summary"
            with urllib.request.urlopen(url, timeout=5) as answer:
                nodes = json.load(answer)["data"]["summary"]
        except (urllib.error.URLError, OSError):
            return set()
        rays = [node.get("raylet", {}) for node in nodes if node.get("ip") == address]
        return {ray["nodeId"] for ray in rays if ray.get("state") == "ALIVE"}

    def _has_dashboard(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.dashboard}/api/jobs/", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True


def of_variable(text: str) -> list[int]:
    """The processes, except zombies, whose variables contain NAME=VALUE."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if text.encode() in variables:
            found.append(int(path.parent.name))
    return found


def _descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
