"""A Lab's switch, which creates the hosts, forwards their packets, and kills their processes.

It runs as a separate process, `python switch.py FD`, where FD is a stream socket. Requests are JSON
objects, one per line, and the switch responds to each request. The first request describes the
hosts. When the other end of the socket is closed, no matter how the process that owned it exited,
the switch kills all processes on the hosts and exits.

A host consists of a network namespace, a UTS namespace and a mount namespace. The namespaces don't
have names in the file system, and only the switch holds them open. The kernel therefore removes
them when the switch exits, even if the switch is killed with SIGKILL. Each host's eth0 is a TUN
device whose packets the switch reads and writes. The packets don't have an Ethernet header and
don't require neighbor discovery, so a host that is cut off simply doesn't respond. With ARP, the
kernel would report such a host as unreachable after 3 s, which never happens with a host behind a
router.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from relight.base.text import LineBuffer
from relight.host import system

MTU = 9000
BATCH = 64
QUEUE = 5000

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
TUNSETIFF, TUNSETPERSIST, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x400454CB, 0x0001, 0x1000
NAMESPACES = ("net", "uts", "mnt")
SYSCTL = {
    "net/ipv4/ip_forward": "0",
    "net/ipv6/conf/all/forwarding": "0",
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
}

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise OSError if a libc call failed."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, flags: int) -> None:
    """Mount a file system or a file in this process's mount namespace."""
    result = libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None)
    checked(result, f"mount on {target}")


def ip(*lines: str) -> None:
    """Run each line as an iproute2 `ip` command in this process's network namespace."""
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise OSError(f"ip: {(done.stderr or done.stdout).strip()}")


def open_tun(name: str) -> int:
    """Create a TUN device in this process's network namespace, and return its descriptor."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
        # All devices are removed together with their namespaces, because closing each of them takes
        # 30 ms.
        fcntl.ioctl(device, TUNSETPERSIST, 1)
    except OSError as error:
        try:
            ip("link add veth0 type veth peer name veth1")
            veth = "veth devices work here, but they cannot delay or lose packets"
        except OSError:
            veth = "veth devices do not work here either"
        raise OSError(f"can't open a TUN device through /dev/net/tun ({error}); {veth}") from None
    return device


def set_sysctl(key: str, value: str) -> None:
    """Write a setting, but only if its value differs, because /proc/sys is read-only in many
    containers.
    """
    path = Path("/proc/sys", key)
    if path.read_text().strip() != value:
        path.write_text(value)


@dataclass(frozen=True, eq=False)
class Port:
    """A host's TUN device, and the descriptors that keep the host's namespaces open."""

    name: str
    device: int
    namespaces: dict[str, int]

    @property
    def network(self) -> int:
        """Return the inode number that identifies the processes on this host."""
        return os.fstat(self.namespaces["net"]).st_ino


def open_namespaces() -> dict[str, int]:
    """Open the namespaces of this process, and return their descriptors by kind."""
    return {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES}


def furnish(name: str, hostname: str, address: str, address6: str, names: str) -> Port:
    """Enter new namespaces, and set them up as a host."""
    checked(libc.unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS), "unshare")
    socket.sethostname(hostname)
    mount("none", "/", MS_REC | MS_SLAVE)
    with tempfile.NamedTemporaryFile("w") as file:  # the mount keeps the unlinked file
        file.write(names)
        file.flush()
        os.chmod(file.name, 0o644)
        mount(file.name, "/etc/hosts", MS_BIND)
    for key, value in SYSCTL.items():
        set_sysctl(key, value)
    device = open_tun("eth0")
    ip(
        "link set lo up",
        "link set eth0 addrgenmode none",  # no link-local address, so an idle host sends nothing
        f"link set eth0 mtu {MTU} txqueuelen {QUEUE} up",
        f"addr add {address}/24 dev eth0",
        f"addr add {address6}/64 dev eth0 nodad",
    )
    return Port(name, device, open_namespaces())


def build(hosts: list[dict[str, str]]) -> dict[str, Port]:
    """Create all hosts, and then switch back to the original namespaces."""
    home = open_namespaces()
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{host[key]} {host['name']}" for key in ("address", "address6") for host in hosts]
    ports = {}
    for host in hosts:
        ports[host["name"]] = furnish(**host, names="\n".join([*lines, ""]))
        for kind in NAMESPACES:
            checked(libc.setns(home[kind], 0), f"setns {kind}")
    for descriptor in home.values():
        os.close(descriptor)
    return ports


def network_namespace(pid: int) -> int:
    """Return the network namespace of a process, or 0 for a zombie."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def processes_in(networks: set[int]) -> set[int]:
    """Return the pids of all processes in these namespaces."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {pid for pid in pids if network_namespace(pid) in networks}


def send(pid: int, number: int, networks: set[int]) -> None:
    """Send a signal to a process, but only if the process is in one of these namespaces."""
    with suppress(ProcessLookupError):
        system.signal_if(pid, number, lambda: network_namespace(pid) in networks)


def kill_all(networks: set[int]) -> None:
    """Kill all processes in these namespaces, including those that are started in the meantime."""
    quiet = 0
    while quiet < 2:  # a process being started may appear after the first pass
        found = processes_in(networks)
        for pid in found:
            send(pid, signal.SIGKILL, networks)
        quiet = 0 if found else quiet + 1
        time.sleep(0.01)


def signal_all(network: int, number: int) -> None:
    """Signal all processes in a namespace, including those that are started in the meantime."""
    sent: set[int] = set()
    while found := processes_in({network}) - sent:
        for pid in found:
            send(pid, number, {network})
        sent |= found


class Switch:
    """Forwards packets between hosts, under the network conditions that the owner sets."""

    def __init__(self, control: socket.socket, hosts: list[dict[str, str]]) -> None:
        self.control = control
        self.received = LineBuffer()
        self.ports = build(hosts)
        self.by_address = {
            socket.inet_pton(family, host[key]): self.ports[host["name"]]
            for family, key in ((socket.AF_INET, "address"), (socket.AF_INET6, "address6"))
            for host in hosts
        }
        self.conditions: dict[Port, tuple[float, float, float]] = {}
        self.blocked: set[tuple[Port, Port]] = set()
        self.under_way: list[tuple[float, int, tuple[Port, Port], bytes]] = []
        self.last_due: dict[tuple[Port, Port], float] = {}
        self.count = 0

    def answer(self, **reply: object) -> None:
        """Send a response to the owner."""
        self.control.sendall(json.dumps(reply).encode() + b"\n")

    def obey(self) -> bool:
        """Handle requests from the owner. Return False once the owner has disconnected."""
        data = self.control.recv(1 << 16)
        for line in self.received.feed(data):
            self.carry_out(json.loads(line))
            self.answer()
        return bool(data)

    def carry_out(self, request: dict[str, Any]) -> None:
        """Execute a request from the owner."""
        if "kill" in request:
            kill_all({self.ports[request["kill"]].network})
        if "signal" in request:
            name, number = request["signal"]
            signal_all(self.ports[name].network, number)
        if "blocked" in request:
            self.blocked = {(self.ports[a], self.ports[b]) for a, b in request["blocked"]}
            self.under_way = [p for p in self.under_way if p[2] not in self.blocked]
            heapq.heapify(self.under_way)
        if "conditions" in request:
            wanted = request["conditions"].items()
            self.conditions = {self.ports[k]: tuple(v) for k, v in wanted if any(v)}

    def passes(self, source: Port, target: Port, packet: bytes) -> bool:
        """Return whether a packet may pass from one host to another, regardless of its content."""
        del packet
        return target is not source and (source, target) not in self.blocked

    def accept(self, source: Port, packet: bytes) -> None:
        """Handle a packet from a host. Packets to an unknown address are sent to all hosts, because
        a test may have added the address to any of them.
        """
        target = self.by_address.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
        targets = self.ports.values() if target is None else (target,)
        for target in targets:
            pair = (source, target)
            if not self.passes(source, target, packet):
                continue
            delay, jitter, loss = self.conditions.get(source, (0.0, 0.0, 0.0))
            if loss and random.random() < loss:  # noqa: S311
                continue
            # Packets in flight are delivered first, even if the delay has been removed in the
            # meantime.
            if delay or jitter or self.under_way:
                due = time.monotonic() + delay + random.uniform(0, jitter)  # noqa: S311
                due = max(due, self.last_due.get(pair, 0.0))
                self.last_due[pair] = due
                self.count += 1
                heapq.heappush(self.under_way, (due, self.count, pair, packet))
            else:
                self.deliver(target, packet)

    def deliver(self, target: Port, packet: bytes) -> None:
        """Deliver a packet to a host."""
        with suppress(OSError):  # the packet is lost, because the interface is down or full
            os.write(target.device, packet)

    def deliver_due(self) -> float:
        """Deliver the packets that are due. Return the number of seconds until the next packet is
        due, or -1 if no packet is left.
        """
        while self.under_way:
            wait = self.under_way[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, (_, target), packet = heapq.heappop(self.under_way)
            self.deliver(target, packet)
        return -1

    def serve(self) -> None:
        """Forward packets until the owner has disconnected."""
        poll = select.epoll()
        poll.register(self.control, select.EPOLLIN)
        by_device = {port.device: port for port in self.ports.values()}
        for device in by_device:
            poll.register(device, select.EPOLLIN)
        while True:
            asked = False
            for ready, _ in poll.poll(self.deliver_due()):
                if ready == self.control.fileno():
                    asked = True
                    continue
                for _ in range(BATCH):
                    try:
                        packet = os.read(ready, MTU)
                    except BlockingIOError:
                        break
                    except OSError:  # the device was removed from within the host
                        poll.unregister(ready)
                        break
                    self.accept(by_device[ready], packet)
            # Requests are handled last, so that packets received before them are subject to the old
            # conditions.
            if asked and not self.obey():
                return


def main(kind: type[Switch] = Switch) -> None:
    """Run the switch for the process at the other end of the socket whose descriptor is in
    `sys.argv[1]`.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with suppress(OSError):
        # A real network does not slow down when its hosts are busy. If the kernel groups processes
        # by session (sched(7), autogroup), a nice value would only have an effect within the
        # session.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with control.makefile("rb") as lines:
        hosts = json.loads(lines.readline())
    try:
        switch = kind(control, hosts)
    except OSError as error:
        control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    try:
        switch.answer(hosts={port.name: port.namespaces for port in switch.ports.values()})
        switch.serve()
    except ConnectionError:
        pass
    finally:
        kill_all({port.network for port in switch.ports.values()})


if __name__ == "__main__":
    main()
