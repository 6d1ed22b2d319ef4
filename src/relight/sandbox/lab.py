"""Several virtual hosts on one machine, for testing the network between them.

    with Lab(hosts=["node1", "node2"]) as lab:
        server = lab["node1"].start([sys.executable, "-m", "http.server"])
        lab.set(delay_ms=100, jitter_ms=200, loss=0.05)
        lab.cut("node1")

Every host has a hostname, its own loopback interface, eth0 with an IPv4 and an IPv6 address, and
its own /etc/hosts that lists all hosts. All hosts share the machine's file system, pids and users.
Hosts can't be reached from other Labs or from the machine itself, so all Labs use the same
addresses, and fixed ports are safe.

A Lab leaves no interface, network namespace or file behind on the machine. A Lab's switch exits
when the process that created the Lab exits. When the switch exits, even if it is killed with
SIGKILL, the kernel removes everything that belongs to the Lab.

Network conditions apply to packets as they leave a host, so a 100 ms delay on all hosts results in
a 200 ms round-trip time. Packets from one host to another are never reordered.

A host name resolves to the IPv6 address first, as in most dual-stack networks. gloo works without
any configuration. GLOO_SOCKET_IFNAME=eth0 is only needed if the hostname resolves to another host's
address.
"""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from relight.base.errors import MachineError

PATIENCE = 60
"""The timeout in seconds for a request to the switch, and for a killed process to exit."""
# The paths of these commands are looked up in advance, because a program may be started with a
# different PATH.
NSENTER, ENV = shutil.which("nsenter"), shutil.which("env")


class LabError(MachineError):
    """Raised if a Lab's hosts can't be created, or if its switch has exited."""


class Host:
    """A host in a Lab."""

    def __init__(self, name: str, number: int) -> None:
        self.name = self.hostname = name
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
        """Start a program on this host in a new session. The arguments are those of
        subprocess.Popen. The program is killed when the Lab is closed.

        The pid of the returned process is the program's own pid, because nsenter and env replace
        themselves with the program. If the program does not exist, the exit code is 127.
        """
        # nsenter's working directory stays in the old mount namespace, and doesn't have a path in
        # the new one.
        directory = [str(ENV), f"--chdir={os.path.abspath(cwd or os.curdir)}", "--"]
        process = subprocess.Popen(
            [*self.entrance, *directory, *map(str, command)],
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        self.processes.append(process)
        return process


class Lab:
    """Several virtual hosts and their network, all of which are removed at the end of the `with`
    block.

    Attributes:
        program: the path of the switch program.
    """

    program = Path(__file__).with_name("switch.py")

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = {name: Host(name, number) for number, name in enumerate(hosts, 1)}
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
        """Kill all processes on the hosts, reap the processes that this object started, and remove
        the hosts.
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
                    with suppress(BrokenPipeError):  # there is unflushed data
                        stream.close()

    def ask(self, request: object) -> Any:
        """Send a request to the switch, wait until it has been carried out, and return the
        response.

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
        """Send a signal to every process on a host."""
        self.ask({"signal": [self.hosts[host].name, number]})

    def set(
        self,
        *,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        host: str | None = None,
    ) -> None:
        """Set the network conditions for packets that a host (or every host) sends. Conditions
        whose arguments are omitted remain unchanged.

        Each packet is dropped with the given probability. Otherwise, it arrives after the delay
        plus a random fraction of the jitter.
        """
        given = {
            "delay": None if delay_ms is None else delay_ms / 1000,
            "jitter": None if jitter_ms is None else jitter_ms / 1000,
            "loss": loss,
        }
        with self.lock:
            for name in self.hosts if host is None else [host]:
                self.conditions[name] |= {k: v for k, v in given.items() if v is not None}
            self.ask(
                {"conditions": {name: list(c.values()) for name, c in self.conditions.items()}}
            )

    def cut(self, *hosts: str) -> None:
        """Disconnect these hosts, as if their cables had been pulled. Packets no longer reach or
        leave these hosts, not even packets that are already in flight.
        """
        with self.lock:
            self.severed.update(self.hosts[name].name for name in hosts)
            self.apply()

    def mend(self, *hosts: str) -> None:
        """Undo cut() for these hosts."""
        with self.lock:
            self.severed.difference_update(hosts)
            self.apply()

    def block(self, source: str, target: str) -> None:
        """Drop all packets that source sends to target. Packets in the opposite direction still get
        through. heal() undoes this.
        """
        with self.lock:
            self.blocks.add((self.hosts[source].name, self.hosts[target].name))
            self.apply()

    def heal(self) -> None:
        """Undo block() and cut(), but leave all other conditions unchanged."""
        with self.lock:
            self.severed, self.blocks = set(), set()
            self.apply()

    def crash(self, host: str) -> None:
        """Simulate a machine failure. The host is disconnected before its processes are killed, so
        that the processes can't notify other hosts.
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
    """Try to create a Lab. Return the reason if that is impossible on this machine, or an empty
    string if it is possible.
    """
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
