"""The port announced to the workers stays theirs, whether the agent or rank 0 serves it."""

import errno
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment
from store_server import NUM_KEYS, VALIDATE, Peer

from relight.base.errors import MachineError, UsageError
from relight.base.values import parse_port_range
from relight.host.loop import Loop
from relight.net.store_port import StorePort

HOSTS = ("127.0.0.1", "::1", "[::1]", "localhost", socket.gethostname())
IP_LOCAL_PORT_RANGE = 51  # since Linux 6.3


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    return host


def address_of(host: str) -> tuple[int, str]:
    """Return the address family and address that relight uses for a host."""
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return family, address[0]


def free_range(size: int) -> range:
    """Return consecutive ports that no program is using."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            ports = range(first.getsockname()[1], first.getsockname()[1] + size)
        try:
            for port in ports:
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return ports


@pytest.mark.parametrize("served", [True, False])
def test_store_uses_the_first_free_port_in_range(loop: Loop, *, served: bool) -> None:
    """Two jobs on one machine get different ports. If all are taken, the error names
    the variable.
    """
    ports = free_range(2)
    stores = [StorePort(loop, "127.0.0.1", 0, served=served, among=ports) for _ in ports]
    assert [store.port for store in stores] == list(ports)
    with pytest.raises(
        MachineError, match=f"no free port in RELIGHT_PORT_RANGE={ports[0]}-{ports[1]}"
    ):
        StorePort(loop, "127.0.0.1", 0, served=served, among=ports)
    stores[0].close()
    again = StorePort(loop, "127.0.0.1", 0, served=served, among=ports)
    assert again.port == ports[0]
    for store in (again, stores[1]):
        store.close()


@pytest.mark.parametrize("text", ["0", "2-1", "1-70000", "x", "-", "1-2-3", "0-5"])
def test_invalid_port_range_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        parse_port_range(text)


def test_port_range_includes_both_ends() -> None:
    assert parse_port_range("29500-29502") == range(29500, 29503)
    assert parse_port_range("29500") == range(29500, 29501)


def only_port(family: int, port: int) -> socket.socket:
    """Return a socket restricted to this one port."""
    bound = socket.socket(family)
    try:
        only = struct.pack("=I", port << 16 | port)
        bound.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only)
    except OSError:
        bound.close()
        pytest.skip("this kernel has no IP_LOCAL_PORT_RANGE")
    return bound


@pytest.mark.parametrize("served", [False, True])
def test_kernel_does_not_assign_the_reserved_port(loop: Loop, host: str, served: bool) -> None:
    """The kernel may choose it again once it is released."""
    held = StorePort(loop, host, 0, served=served)
    family, address = address_of(host)
    everywhere = "0.0.0.0" if family == socket.AF_INET else "::"
    for taker in (address, everywhere):
        for reuse in (0, 1):
            with only_port(family, held.port) as bound:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                with pytest.raises(OSError, match="in use"):
                    bound.bind((taker, 0))
    with (
        socket.create_server((address, 0), family=family) as other,
        only_port(family, held.port) as client,
        pytest.raises(OSError, match="assign"),
    ):
        client.connect(other.getsockname()[:2])
    held.close()
    with only_port(family, held.port) as bound:
        bound.bind((address, 0))
        assert bound.getsockname()[1] == held.port


@pytest.mark.parametrize("served", [False, True])
def test_reserved_port_cannot_be_bound_explicitly(loop: Loop, host: str, served: bool) -> None:
    """A program that binds it in the usual way is refused while it is reserved."""
    held = StorePort(loop, host, 0, served=served)
    family, address = address_of(host)
    with socket.socket(family) as bound:
        with pytest.raises(OSError) as refused:
            bound.bind((address, held.port))
        assert refused.value.errno == errno.EADDRINUSE
        held.close()
        bound.bind((address, held.port))
        bound.listen()


@pytest.mark.parametrize("served", [False, True])
def test_unusable_port_or_address_is_a_usage_error(loop: Loop, served: bool) -> None:
    """The user has to change a port that is taken or an address that isn't local."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageError, match="is in use by another program"),
    ):
        StorePort(loop, "127.0.0.1", taken.getsockname()[1], served=served)
    with pytest.raises(UsageError, match="is not an address of this machine"):
        StorePort(loop, "192.0.2.1", 0, served=served)  # reserved for documentation
    for name in ("no such name", "", "\udcff", "300.1.1.1"):
        with pytest.raises(UsageError, match="can't resolve"):
            StorePort(loop, name, 0, served=served)


_WITHOUT_FREE_PORTS = """
import socket, sys
from relight.api import function
from relight.cli import main; from relight.cli.inspect import status_page
from relight.base.errors import RelightError
from relight.net.ports import is_ours
from relight.base.values import Endpoint, PageAddress

open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40001")
held = [socket.socket() for _ in range(2)]
for sock in held:
    sock.bind(("127.0.0.1", 0))
    sock.listen()
print(is_ours("127.0.0.1"), is_ours("192.0.2.1"), file=sys.stderr)
register = ["--rdzv-backend=file", f"--rdzv-endpoint={sys.argv[1]}", "--rdzv-id=x"]
print(main.main(["coordinator", "--bind=127.0.0.1", *register]), file=sys.stderr)
for call in (
    lambda: status_page._listening(PageAddress(Endpoint("127.0.0.1", 0)), "", None),
    lambda: function._meeting(2),
):
    try:
        call()
    except RelightError as error:
        print(error.exit_code, error.message, file=sys.stderr)
sys.exit(main.main(["run", "--no-python", "true"]))
"""


@pytest.mark.needs_hosts
def test_running_out_of_ports_is_a_machine_error(tmp_path: Path) -> None:
    """In that case port 0 fails with EADDRINUSE, just like a port that is taken (bind(2))."""
    command = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c"]
    done = subprocess.run(
        ["unshare", "--net", *command, _WITHOUT_FREE_PORTS, tmp_path / "register"],
        env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
    why = "all of 40000 to 40001 (net.ipv4.ip_local_port_range) are in use"
    none = "no free port for"
    assert done.returncode == 4, done.stderr
    assert said == [
        "True False",
        f"relight: error: {none} the coordinator: {why}",
        "4",
        f"4 {none} the status page: {why}",
        f"4 {none} the workers' store: {why}",
        f"relight: error: {none} the workers' store: {why}",
    ]


@pytest.mark.slow
@pytest.mark.needs_torch
def test_torch_can_serve_its_store_on_the_reserved_port(loop: Loop, host: str) -> None:
    """Rank 0's own server listens on the port reserved by the agent, and can be reached there."""
    from torch.distributed import TCPStore as TorchStore

    patience = timedelta(seconds=LIMIT_S)
    held = StorePort(loop, host, 0, served=False)
    name = host.strip("[]")
    server = TorchStore(
        name, held.port, 2, is_master=True, wait_for_workers=False, timeout=patience
    )
    assert server.port == held.port
    client = TorchStore(
        name, held.port, 2, is_master=False, wait_for_workers=False, timeout=patience
    )
    client.set("key", "value")
    assert server.get("key") == b"value"
    held.close()
    assert client.get("key") == b"value"


def test_lazily_loaded_server_serves_clients_that_connected_earlier(
    loop: Loop,
) -> None:
    held = StorePort(loop, "127.0.0.1", 0, served=True)
    with Peer(held.port, greet=False) as first, Peer(held.port, greet=False) as second:
        assert held.most_clients == 0
        loop.run_until(lambda: held.most_clients == 2)
        for peer in (first, second):
            peer.send(VALIDATE + NUM_KEYS)
        loop.run_once(0)
        assert [peer.number() for peer in (first, second)] == [0, 0]
        held.close()
        assert first.ended()
