"""Real etcd on loopback for tests: one server, or a cluster that can lose members.

    with EtcdServer(tmp_path) as server:
        server.endpoint  # HOST:PORT
    with EtcdCluster(tmp_path, 3) as cluster:
        cluster.endpoint  # HOST:PORT,HOST:PORT,HOST:PORT
        cluster.kill(cluster.leader())

`etcd_unavailable()` returns the reason why etcd can't run.
"""

import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from conftest import LIMIT_S

HOST = "127.0.0.1"


def etcd_unavailable() -> str:
    """Return why etcd can't be started here, or an empty string."""
    missing = [name for name in ("etcd", "etcdctl") if not shutil.which(name)]
    return f"no {' and no '.join(missing)} (Debian: etcd-server, etcd-client)" if missing else ""


_PORTS = range(20000, 32000)
"""Ports that Linux never assigns automatically, so no other program gets one before a test server
has bound it.
"""


def free_ports(number: int, host: str = HOST) -> list[int]:
    """Return unused ports; nobody can take them by chance before they are used."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return found
    raise AssertionError("not enough ports are free")


def wait_for(condition: Any, what: str, patience_s: float = LIMIT_S) -> Any:
    """Wait until `condition` returns something true, and return that."""
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(0.02)
    return result


class Certificates(NamedTuple):
    """Files for a certificate authority, a server at 127.0.0.1 and localhost, and a client."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Create certificates. None has a CN, because etcd's gateway takes that for a user name."""
    directory.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments: object) -> None:
        subprocess.run(
            ["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=LIMIT_S
        )

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca, ca_key, extensions = (directory / name for name in ("ca.pem", "ca.key", "extensions"))
    openssl("req", "-x509", *new_key, "-days", 2, "-subj", "/O=ca", "-keyout", ca_key, "-out", ca)
    extensions.write_text(
        f"subjectAltName=IP:{HOST},DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    made = [ca]
    for name in ("server", "client"):
        key, request, certificate = (directory / f"{name}.{e}" for e in ("key", "csr", "pem"))
        openssl("req", *new_key, "-subj", f"/O={name}", "-keyout", key, "-out", request)
        openssl(
            "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial",
            "-days", 2, "-out", certificate, "-extfile", extensions,
        )  # fmt: skip
        made += [certificate, key]
    return Certificates(*made)


def _memory() -> str | None:
    """Return an in-memory directory if there is room: on a busy disk, etcd's calls to fsync take
    longer than its clients wait.
    """
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 << 30 else None
    except OSError:
        return None


class EtcdMember:
    """One etcd process and its data directory; it can be stopped and started again."""

    def __init__(
        self, directory: Path, data: Path, name: str, flags: Sequence[str], url: str, tls: Any
    ) -> None:
        self.name, self.url = name, url
        self.log = directory / f"{name}.log"
        self._tls = tls
        self._command = ["etcd", "--name", name, "--data-dir", str(data / name), *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
            )

    def end(self, number: int) -> None:
        """Send a signal and wait until the process exits."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(LIMIT_S)
            self.process = None

    def is_healthy(self) -> bool:
        """Whether it serves clients."""
        assert self.process is None or self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(
                f"{self.url}/health", timeout=2, context=self._tls
            ) as answer:
                return json.load(answer).get("health") in ("true", True)
        except (OSError, ValueError):
            return False


class EtcdCluster:
    """A cluster of etcd members on free loopback ports.

    Args:
        directory: The log directory.
        size: The number of members.
        certificates: Certificates for TLS; without them, TLS is not used.
        client_certificates: Whether clients without a certificate are refused.
        flags: Additional flags for every member.
    """

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        certificates: Certificates | None = None,
        client_certificates: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._size = size
        self._certificates = certificates
        self._flags = list(flags)
        self._context = None
        if certificates is not None:
            self._context = ssl.create_default_context(cafile=str(certificates.ca))
            self._context.load_cert_chain(certificates.client, certificates.client_key)
            self._flags += [f"--cert-file={certificates.server}"]
            self._flags += [f"--key-file={certificates.server_key}"]
            if client_certificates:
                self._flags += [f"--trusted-ca-file={certificates.ca}", "--client-cert-auth"]
        self._data = tempfile.TemporaryDirectory(prefix="etcd-", dir=_memory())
        self.members: list[EtcdMember] = []
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(3):
            self._prepare(attempt)
            for index in range(self._size):
                self.members[index].start()
            try:
                self.wait_healthy()
            except AssertionError as error:
                self.close()
                if "address already in use" not in str(error):
                    raise
            else:
                return self
        raise AssertionError("no free ports for etcd")

    def __exit__(self, *_: object) -> None:
        self.close()
        self._data.cleanup()

    def close(self) -> None:
        """End all members."""
        for member in self.members:
            member.end(signal.SIGKILL)

    @property
    def endpoint(self) -> str:
        """The value for --rdzv-endpoint."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def start(self, index: int) -> None:
        """Start a member that was stopped or killed; it keeps its data."""
        self.members[index].start()

    def stop(self, index: int) -> None:
        """Stop a member as an operator would."""
        self.members[index].end(signal.SIGTERM)

    def kill(self, index: int) -> None:
        """Lose a member, with kill -9."""
        self.members[index].end(signal.SIGKILL)

    def pause(self, index: int) -> None:
        """Freeze a member: its connections stay open, but it does not respond."""
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """Resume a frozen member."""
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def running(self) -> list[int]:
        """The indices of the members that have a process."""
        return [i for i, member in enumerate(self.members) if member.process is not None]

    def wait_healthy(self) -> None:
        """Wait until every running member serves clients."""
        for index in self.running():
            member = self.members[index]
            wait_for(member.is_healthy, f"the health of {member.name}")

    def leader(self) -> int:
        """The index of the member that the others follow; wait until there is one."""

        def found() -> list[int]:
            return [i for i in self.running() if self._is_leader(i)]

        return wait_for(found, "a leader")[0]

    def ctl(self, *arguments: str, index: int = 0) -> str:
        """Run etcdctl on a member; return its output."""
        flags = [f"--endpoints={self.members[index].url}"]
        if self._certificates is not None:
            ca, _, _, cert, key = map(str, self._certificates)
            flags += [f"--cacert={ca}", f"--cert={cert}", f"--key={key}"]
        result = subprocess.run(
            ["etcdctl", *flags, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == 0, f"etcdctl {arguments}: {result.stdout}{result.stderr}"
        return result.stdout

    def _is_leader(self, index: int) -> bool:
        request = urllib.request.Request(
            f"{self.members[index].url}/v3/maintenance/status", data=b"{}", method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=2, context=self._context) as answer:
                status = json.load(answer)
        except (OSError, ValueError):
            return False
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]

    def _prepare(self, attempt: int) -> None:
        ports = free_ports(2 * self._size)
        self.ports, peers = ports[: self._size], ports[self._size :]
        scheme = "http" if self._certificates is None else "https"
        names = [f"n{index}" for index in range(self._size)]
        cluster = ",".join(f"{n}=http://{HOST}:{p}" for n, p in zip(names, peers, strict=True))
        self.members = []
        for name, port, peer in zip(names, self.ports, peers, strict=True):
            url, peer_url = f"{scheme}://{HOST}:{port}", f"http://{HOST}:{peer}"
            flags = [
                "--logger=zap", "--log-level=error", "--heartbeat-interval=50",
                "--election-timeout=500", "--listen-client-urls", url, "--advertise-client-urls",
                url, "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
                "--initial-cluster", cluster, "--initial-cluster-token", f"{os.getpid()}.{attempt}",
                *self._flags,
            ]  # fmt: skip
            directory = self._directory / f"try{attempt}"
            directory.mkdir(exist_ok=True)
            data = Path(self._data.name, f"try{attempt}")
            self.members.append(EtcdMember(directory, data, name, flags, url, self._context))


class EtcdServer(EtcdCluster):
    """A single etcd. Takes the same arguments as `EtcdCluster`, except the size."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, 1, **options)

    def require_users(self) -> None:
        """Require the users root:rootpw, and user:userpw with full access to /jobs/."""
        self.ctl("user", "add", "root:rootpw")
        self.ctl("role", "add", "root")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "jobs")
        self.ctl("role", "grant-permission", "jobs", "readwrite", "--prefix=true", "/jobs/")
        self.ctl("user", "add", "user:userpw")
        self.ctl("user", "grant-role", "user", "jobs")
        self.ctl("auth", "enable")
