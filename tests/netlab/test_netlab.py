"""The hosts and the network that other tests use work as documented."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S

import relight
from netlab import Host, Lab, LabError

pytestmark = pytest.mark.needs_hosts

TESTS = Path(__file__).parents[1]
SOURCE = Path(relight.__file__).parents[1]

SERVER = """
import socket, sys
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    connection, peer = server.accept()
    while data := connection.recv(100):
        connection.sendall(data.upper())
"""

ECHO = """
import socket
echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
echo.bind(("::", 7000))
print("ready", flush=True)
while True:
    data, peer = echo.recvfrom(2000)
    echo.sendto(data, peer)
"""

ROUND_TRIPS = """
import json, socket, sys, time
probe = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
probe.settimeout(180)
probe.connect((sys.argv[1], 7000))
times = []
for _ in range(20):
    start = time.monotonic()
    probe.send(b"x")
    probe.recv(10)
    times.append((time.monotonic() - start) * 1000)
print(json.dumps(times))
"""

# Sends the messages from its input, `TEXT TO`, and prints those that it sent and received.
PEER = """
import socket, sys, threading
peer = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
peer.bind(("::", 7000))
def listen():
    while True:
        print("heard " + peer.recv(1000).decode() + "\\n", end="", flush=True)
threading.Thread(target=listen, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    text, to = line.split()
    peer.sendto(text.encode(), (to, 7000))
    print("sent " + text + "\\n", end="", flush=True)
"""

# Counts datagrams until one contains `end`; its buffer can hold them all.
COUNT = """
import json, socket
inbox = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
inbox.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)  # SO_RCVBUFFORCE
inbox.bind(("::", 7000))
print("ready", flush=True)
numbers = []
while (data := inbox.recv(100)) != b"end":
    numbers.append(int(data))
print(json.dumps(numbers))
"""

SEND = """
import socket, sys, time
outbox = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
outbox.connect(("node1", 7000))
for number in range(int(sys.argv[1])):
    outbox.send(b"%d" % number)
    if number % 50 == 49:
        time.sleep(0.005)
"""

CONNECT = """
import socket, sys
s = socket.create_connection((sys.argv[1], 7000), timeout=2)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=["node1", "node2", "node3"]) as made:
        yield made


def begin(host: Host, program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program that communicates through its standard streams."""
    return host.start(
        [sys.executable, "-I", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def serve(host: Host, program: str) -> "subprocess.Popen[str]":
    process = begin(host, program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def run(host: Host, program: str, *arguments: str) -> str:
    process = begin(host, program, *arguments)
    return process.communicate(timeout=LIMIT_S)[0]


def await_none(left: Callable[[], list[Any]]) -> None:
    end = time.monotonic() + LIMIT_S
    while left():
        assert time.monotonic() < end, f"left behind: {left()}"
        time.sleep(0.02)


class Peers:
    """One PEER on each host."""

    def __init__(self, lab: Lab) -> None:
        self.processes = {name: serve(host, PEER) for name, host in lab.hosts.items()}
        self.heard: dict[str, list[str]] = {name: [] for name in lab.hosts}

    def wait(self, name: str, line: str) -> None:
        stdout = self.processes[name].stdout
        assert stdout is not None
        while (said := stdout.readline().strip()) != line:
            assert said.startswith(("heard ", "sent ")), f"{name} ended, without {line}: {said}"
            if said.startswith("heard "):
                self.heard[name].append(said.removeprefix("heard "))

    def send(self, word: str) -> None:
        """Send a word from every host to every other host."""
        for source, process in self.processes.items():
            for target in self.processes:
                if source != target:
                    assert process.stdin is not None
                    process.stdin.write(f"{word}:{source}>{target} {target}\n")
                    process.stdin.flush()
                    self.wait(source, f"sent {word}:{source}>{target}")

    def reached(self, word: str, last: str) -> set[str]:
        """Return the pairs that received a word. The last word, sent later, must reach all pairs.

        Packets between a pair stay in order, so a word that arrives at all does so before the last
        one.
        """
        for target in self.processes:
            for source in self.processes:
                mark = f"{last}:{source}>{target}"
                if source != target and mark not in self.heard[target]:
                    self.wait(target, f"heard {mark}")
                    self.heard[target].append(mark)
        said = [line.partition(":") for lines in self.heard.values() for line in lines]
        return {pair for heard, _, pair in said if heard == word}


ALL = {f"node{a}>node{b}" for a in (1, 2, 3) for b in (1, 2, 3) if a != b}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_hosts_can_connect_to_each_other_by_name(lab: Lab, family: socket.AddressFamily) -> None:
    """Names resolve to IPv4 and IPv6 addresses."""
    serve(lab["node1"], SERVER)
    client = """
import socket, sys
address = socket.getaddrinfo("node1", 7000, int(sys.argv[1]), socket.SOCK_STREAM)[0]
connection = socket.socket(*address[:3])
connection.connect(address[4])
connection.sendall(b"hello")
print(connection.recv(100).decode(), connection.getpeername()[0], connection.getsockname()[0])
"""
    said = run(lab["node2"], client, str(int(family))).split()
    key = "address" if family == socket.AF_INET else "address6"
    assert said == ["HELLO", getattr(lab["node1"], key), getattr(lab["node2"], key)]


def test_program_sees_only_its_own_host(tmp_path: Path) -> None:
    """The program has its own hostname, pid, and session, and runs in the requested directory."""
    who = "import os, socket; print(socket.gethostname(), os.getpid(), os.getsid(0), os.getcwd())"
    before = socket.gethostname()
    with Lab(hosts=["node1", "node2"], hostnames={"node2": "twin"}) as lab:
        for name, hostname in (("node1", "node1"), ("node2", "twin")):
            command = [sys.executable, "-c", who]
            process = lab[name].start(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            said = process.communicate(timeout=LIMIT_S)[0].split()
            assert said == [hostname, str(process.pid), str(process.pid), str(tmp_path)]
    assert socket.gethostname() == before


def test_disconnected_host_neither_sends_nor_receives(lab: Lab) -> None:
    """The other hosts can still reach each other."""
    peers = Peers(lab)
    lab.cut("node3")
    peers.send("cut")
    lab.mend("node3")
    peers.send("mended")
    assert peers.reached("cut", last="mended") == {"node1>node2", "node2>node1"}


def test_block_drops_packets_in_one_direction_only(lab: Lab) -> None:
    peers = Peers(lab)
    lab.block("node1", "node2")
    peers.send("blocked")
    lab.heal()
    peers.send("healed")
    assert peers.reached("blocked", last="healed") == ALL - {"node1>node2"}


def test_network_partition_separates_host_groups(lab: Lab) -> None:
    """The partition lasts until it is healed."""
    peers = Peers(lab)
    lab.partition(["node1"], ["node2", "node3"])
    peers.send("apart")
    lab.heal()
    peers.send("together")
    assert peers.reached("apart", last="together") == {"node2>node3", "node3>node2"}


def test_host_outside_all_groups_reaches_every_group(lab: Lab) -> None:
    peers = Peers(lab)
    lab.partition(["node1"], ["node2"])
    peers.send("apart")
    lab.heal()
    peers.send("together")
    assert peers.reached("apart", last="together") == ALL - {"node1>node2", "node2>node1"}


def test_packets_in_flight_are_dropped_when_host_is_disconnected(lab: Lab) -> None:
    """A delayed packet that was sent before the cut doesn't arrive after it."""
    peers = Peers(lab)
    lab.set(delay_ms=300)
    peers.send("early")
    lab.cut("node1")
    lab.mend("node1")
    peers.send("late")
    assert peers.reached("early", last="late") == {"node2>node3", "node3>node2"}


@pytest.mark.slow
def test_crashed_host_stops_responding(lab: Lab) -> None:
    """A connected client receives nothing, and a new connection times out."""
    server = serve(lab["node1"], SERVER)
    listen = """
import socket, sys
connection = socket.create_connection(("node1", 7000))
connection.sendall(b"x")
print(connection.recv(1).decode(), flush=True)
connection.settimeout(2)
try:
    print(connection.recv(1))
except OSError as error:
    print(type(error).__name__)
"""
    connected = begin(lab["node2"], listen)
    assert connected.stdout is not None
    assert connected.stdout.readline() == "X\n"
    lab.crash("node1")
    assert server.wait(LIMIT_S) == -signal.SIGKILL
    for address in (lab["node1"].address, lab["node1"].address6):
        assert "TimeoutError: timed out" in run(lab["node2"], CONNECT, address)
    assert connected.communicate(timeout=LIMIT_S)[0] == "TimeoutError\n"

    lab.mend("node1")
    assert "ConnectionRefusedError" in run(lab["node2"], CONNECT, lab["node1"].address)


@pytest.mark.parametrize(("loss", "low", "high"), [(0.0, 0, 0), (0.05, 51, 149)])
def test_packet_loss_rate_matches_configuration(lab: Lab, loss: float, low: int, high: int) -> None:
    """5 % of 2,000 datagrams are lost, within five standard deviations, or none without loss."""
    count = serve(lab["node1"], COUNT)
    lab.set(loss=loss, host="node2")
    assert run(lab["node2"], SEND, "2000") == ""
    lab.set(loss=0)
    end = "import socket; socket.socket(10, 2).sendto(b'end', ('node1', 7000))"
    assert run(lab["node2"], end) == ""
    numbers = json.loads(count.communicate(timeout=LIMIT_S)[0])
    assert low <= 2000 - len(numbers) <= high


def test_jitter_preserves_order(lab: Lab) -> None:
    """Packets between two hosts stay in order, however much the delays differ."""
    count = serve(lab["node1"], COUNT)
    lab.set(jitter_ms=100)
    assert run(lab["node2"], SEND, "300") == ""
    lab.set(jitter_ms=0)
    end = "import socket; socket.socket(10, 2).sendto(b'end', ('node1', 7000))"
    assert run(lab["node2"], end) == ""
    assert json.loads(count.communicate(timeout=LIMIT_S)[0]) == list(range(300))


def test_delay_and_jitter_are_added_to_round_trip_time(lab: Lab) -> None:
    """A round trip takes at least the delay in both directions, and varies by the jitter."""
    serve(lab["node1"], ECHO)
    plain = json.loads(run(lab["node2"], ROUND_TRIPS, "node1"))
    lab.set(delay_ms=30)
    delayed = json.loads(run(lab["node2"], ROUND_TRIPS, "node1"))
    lab.set(delay_ms=0)
    lab.set(jitter_ms=90, host="node1")
    shaken = json.loads(run(lab["node2"], ROUND_TRIPS, "node1"))
    assert min(delayed) >= 60
    assert min(plain) < min(delayed)
    assert max(shaken) - min(shaken) > 30


def test_two_labs_are_isolated_from_each_other(lab: Lab) -> None:
    """Both labs use the same names, addresses, and ports."""
    with Lab(hosts=["node1", "node2"]) as other:
        one, two = Peers(lab), Peers(other)
        lab.cut("node1")
        one.send("hello")
        two.send("hello")
        lab.heal()
        one.send("end")
        two.send("end")
        assert one.reached("hello", last="end") == {"node2>node3", "node3>node2"}
        assert two.reached("hello", last="end") == {"node1>node2", "node2>node1"}
    assert run(lab["node1"], "print('still here')") == "still here\n"


def state(pid: int) -> str:
    """Return the state (R, S, Z …), or an empty string if the process no longer exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def users_of(namespace: str) -> list[str]:
    """Return the processes in a namespace, and the descriptors and mounts that keep it alive."""
    found = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if namespace in line
    ]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            links = [f"/proc/{entry}/ns/net"]
            try:
                links += [f"/proc/{entry}/fd/{fd}" for fd in os.listdir(f"/proc/{entry}/fd")]
                found += [link for link in links if os.readlink(link) == namespace]
            except OSError:
                pass
    return found


def named_networks() -> list[str]:
    """Return what `ip netns` has made on this machine."""
    found = (Path("/run/netns"), Path("/etc/netns"))
    return sorted(str(each) for path in found if path.is_dir() for each in path.iterdir())


def test_killed_lab_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    """The owner's processes, hosts, and switch are gone."""
    before = named_networks()
    owner = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
from netlab import Lab
with Lab(hosts=["node1", "node2"]) as lab:
    stubborn = "trap '' TERM HUP INT; setsid sleep 1000 & echo $!; exec sleep 1000"
    started = [lab[n].start(["sh", "-c", stubborn], stdout=subprocess.PIPE) for n in lab.hosts]
    pids = [lab.switch.pid, *(p.pid for p in started), *(int(p.stdout.readline()) for p in started)]
    os.kill(started[0].pid, 19)
    networks = [os.readlink(f"/proc/{{p.pid}}/ns/net") for p in started]
    print(json.dumps([pids, networks]), flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-I", "-c", owner]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(command, **pipes) as process:
        pids, networks = json.loads(process.stdout.readline())
        assert all(state(pid) not in ("", "Z") for pid in pids)
        assert len(set(networks)) == 2
        assert all(users_of(network) for network in networks)
        process.kill()
        process.wait()
        await_none(lambda: [pid for pid in pids if state(pid) not in ("", "Z")])
        await_none(lambda: [user for network in networks for user in users_of(network)])
    assert named_networks() == before


def test_closing_a_lab_ends_its_processes() -> None:
    """Even processes left behind in another session end."""
    with Lab(hosts=["node1"]) as lab:
        program = "setsid sleep 1000 & echo $!"
        process = lab["node1"].start(["sh", "-c", program], stdout=subprocess.PIPE, text=True)
        pid = int(process.stdout.readline())
        process.wait(LIMIT_S)
        assert state(pid) not in ("", "Z")
    assert state(pid) in ("", "Z")


def test_dead_network_switch_is_reported(lab: Lab) -> None:
    """A Lab must not claim that a rule is in effect when it isn't."""
    lab.switch.kill()
    lab.switch.wait(LIMIT_S)
    with pytest.raises(LabError, match="switch"):
        lab.cut("node1")


WHY = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(SOURCE)!r}]
import netlab
print(netlab.lab_unavailable())
"""


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (["setpriv", "--reuid=65534", "--clear-groups"], "root"),
        (["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"], "unshare"),
        (["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"], "net"),
        (["env", "PATH=/nowhere"], "iproute2"),
        (
            ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"],
            "can't open a TUN device through /dev/net/tun .*; veth devices work here",
        ),
    ],
    ids=["user", "no SYS_ADMIN", "no NET_ADMIN", "no ip", "no tun"],
)
def test_error_states_what_the_network_lab_is_missing(prefix: list[str], reason: str) -> None:
    python = os.path.realpath(sys.executable)
    command = [*prefix, python, "-I", "-S", "-c", WHY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(reason, done.stdout), done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.needs_torch
def test_torchrun_trains_across_hosts(lab: Lab, tmp_path: Path) -> None:
    """Two hosts run a gloo all_reduce, with the endpoint given by name."""
    script = tmp_path / "train.py"
    script.write_text(
        "import socket, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(100000) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(total)\n"
        "print('sum', total.unique().tolist(), socket.gethostname(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=lab"]
    started = {
        name: lab[name].start(
            [*torchrun, *rendezvous, script],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("node1", "node2")
    }
    for name, process in started.items():
        said = process.communicate(timeout=LIMIT_S)[0]
        assert process.returncode == 0, said
        assert f"sum [3.0] {name}\n" in said
