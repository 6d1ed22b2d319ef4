"""Several virtual hosts on one machine, for testing the network between them.

    with Lab(hosts=["node1", "node2"]) as lab:
        server = lab["node1"].start([sys.executable, "-m", "http.server"])
        lab.set(delay_ms=100, jitter_ms=200, loss=0.05)
        lab.cut("node1")

Every host has a hostname, its own loopback interface, eth0 with an IPv4 and an IPv6 address, and
its own /etc/hosts that lists all hosts. All hosts share the machine's file system, pids and users.
Hosts can't be reached from other Labs or from the machine itself, so all Labs use the same
addresses, and fixed ports are safe.

A Lab leaves no interface, network namespace or file behind on the machine. Its switch exits when
its owner does. When the switch exits, even if it is killed with SIGKILL, the kernel removes
everything.

Conditions apply to packets as they leave a host, so a delay of 100 ms on all hosts results in a
round trip of 200 ms. Packets from one host to another keep their order.

A name resolves to the IPv6 address first, as in most dual-stack networks. gloo works without
configuration. GLOO_SOCKET_IFNAME=eth0 is only needed if the hostname resolves to an address of
another host.
"""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from relight.base.errors import MachineError

PATIENCE = 60
"""The timeout in seconds for a request to the switch, and for a killed process to exit."""
# They are looked up here, because a program may be started with a different PATH.
NSENTER, ENV = shutil.which("nsenter"), shutil.which("env")


class LabError(MachineError):
    """Raised if the hosts can't be created, or if their switch has exited."""


class Host:
    """One host in a Lab."""

    def __init__(self, name: str, hostname: str, number: int) -> None:
        self.name = name
        self.hostname = hostname
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number:x}"
        self.entrance: list[str] = []
        self.processes: list[subprocess.Popen[Any]] = []

    def start(
        self,
        command: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Start a program on this host, like subprocess.Popen, in a new session. It is killed when
        the Lab is closed.

        The returned process has the program's pid, because nsenter and env replace themselves with
        the program. If the program does not exist, the exit code is 127.
        """
        # nsenter keeps its directory in the old mount namespace, which has no path in the new one.
        directory = [str(ENV), f"--chdir={os.path.abspath(cwd or os.curdir)}", "--"]
        process = subprocess.Popen(
            [*self.entrance, *directory, *map(str, command)],
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        self.processes.append(process)
        return process


class Lab:
    """Several hosts and their network, which are removed at the end of the `with` block.

    A host's hostname is its name, unless `hostnames` specifies another one.

    Attributes:
        program: the path of the switch program.
    """

    program = Path(__file__).with_name("switch.py")

    def __init__(self, hosts: Iterable[str], hostnames: Mapping[str, str] | None = None) -> None:
        aliases = hostnames or {}
        self.hosts = {
            name: Host(name, aliases.get(name, name), number)
            for number, name in enumerate(hosts, 1)
        }
        if len(self.hosts) > 254:
            raise ValueError(f"a Lab has at most 254 hosts, not {len(self.hosts)}")
        self.conditions = {name: {"delay": 0.0, "jitter": 0.0, "loss": 0.0} for name in self.hosts}
        self.severed: set[str] = set()
        self.blocks: set[tuple[str, str]] = set()
        self.lock = threading.RLock()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> "Lab":
        if os.geteuid() != 0:
            raise LabError("hosts require root, to create namespaces")
        if shutil.which("ip") is None or NSENTER is None or ENV is None:
            raise LabError(
                "hosts require ip, nsenter and env (Debian: iproute2, util-linux, coreutils)"
            )
        self.control, theirs = socket.socketpair()
        self.control.settimeout(PATIENCE)
        with theirs:
            self.switch = subprocess.Popen(
                [sys.executable, "-I", "-S", str(self.program), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.answers = self.control.makefile("rb")
        try:
            keys = ("name", "hostname", "address", "address6")
            wanted = [{key: getattr(host, key) for key in keys} for host in self.hosts.values()]
            for name, namespaces in self.ask(wanted)["hosts"].items():
                entrance = f"/proc/{self.switch.pid}/fd"
                long = {"net": "net", "uts": "uts", "mnt": "mount"}
                options = [f"--{long[kind]}={entrance}/{fd}" for kind, fd in namespaces.items()]
                self.hosts[name].entrance = [NSENTER, *options, "--"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes on the hosts, reap the ones that were started by this object, and
        remove the hosts.
        """
        self.answers.close()
        self.control.close()
        processes = [process for host in self.hosts.values() for process in host.processes]
        for process in processes:
            if process.poll() is None:
                process.kill()
        self.switch.wait(PATIENCE)
        for process in processes:
            process.wait(PATIENCE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:  # unflushed data
                        pass

    def ask(self, request: object) -> Any:
        """Send a request to the switch, and return the response once the request has been carried
        out.

        Raises:
            LabError: if the switch has exited, or can't carry out the request.
        """
        with self.lock:
            try:
                self.control.sendall(json.dumps(request).encode() + b"\n")
                answer = self.answers.readline()
            except OSError as error:
                raise LabError(f"the switch is not responding: {error}") from error
        if not answer:
            raise LabError("the switch has ended")
        reply = json.loads(answer)
        if "error" in reply:
            raise LabError(
                f"can't create hosts on this machine: {reply['error']}",
                hint="in a container, it needs CAP_SYS_ADMIN, CAP_NET_ADMIN and /dev/net/tun",
            )
        return reply

    def signal(self, host: str, number: int) -> None:
        """Send a signal to every process of a host."""
        self.ask({"signal": [self.hosts[host].name, number]})

    def set(
        self,
        *,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        host: str | None = None,
    ) -> None:
        """Set the conditions for packets that a host (or every host) sends. Arguments that are
        omitted leave their values unchanged.

        Each packet is delayed by the delay plus a random fraction of the jitter, or dropped with
        the given probability.
        """
        given = {
            "delay": None if delay_ms is None else delay_ms / 1000,
            "jitter": None if jitter_ms is None else jitter_ms / 1000,
            "loss": loss,
        }
        with self.lock:
            for name in self.hosts if host is None else [host]:
                known = {key: value for key, value in given.items() if value is not None}
                self.conditions[name].update(known)
            self.ask(
                {"conditions": {name: list(c.values()) for name, c in self.conditions.items()}}
            )

    def cut(self, *hosts: str) -> None:
        """Disconnect these hosts, as if their cables had been pulled. No packet reaches or leaves
        them, not even packets already in flight.
        """
        with self.lock:
            self.severed.update(self.hosts[name].name for name in hosts)
            self.apply()

    def mend(self, *hosts: str) -> None:
        """Undo cut()."""
        with self.lock:
            self.severed.difference_update(hosts)
            self.apply()

    def block(self, source: str, target: str) -> None:
        """Drop all packets from source to target, in this direction only. heal() undoes this."""
        with self.lock:
            self.blocks.add((self.hosts[source].name, self.hosts[target].name))
            self.apply()

    def heal(self) -> None:
        """Undo block() and cut(), without changing other conditions."""
        with self.lock:
            self.severed, self.blocks = set(), set()
            self.apply()

    def crash(self, host: str) -> None:
        """Simulate a machine failure. The host is cut off before it is killed, so that no goodbye
        message gets out.
        """
        self.cut(host)
        self.ask({"kill": host})

    def apply(self) -> None:
        """Send the list of blocked pairs to the switch."""
        blocked = [
            (a, b)
            for a in self.hosts
            for b in self.hosts
            if a in self.severed or b in self.severed or (a, b) in self.blocks
        ]
        self.ask({"blocked": blocked})


@functools.cache
def lab_unavailable() -> str:
    """Try to create a Lab. Return why that is impossible on this machine, or an empty string."""
    try:
        with Lab(hosts=["here"]) as lab:
            say = "import socket; print(socket.gethostname(), socket.gethostbyname('here'))"
            command = [sys.executable, "-I", "-S", "-c", say]
            process = lab["here"].start(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            said = process.communicate(timeout=PATIENCE)[0].strip()
            expected = f"here {lab['here'].address}"
            return "" if said == expected else f"a host printed {said!r} instead of {expected!r}"
    except (LabError, OSError, subprocess.SubprocessError) as error:
        return str(error)
