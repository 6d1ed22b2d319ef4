"""OpenSSH servers, each with its own port, host key and variables.

    with Sshd(["alpha", "beta"]) as hosts:
        Ssh().render(app, {**defaults, **hosts.cfg()}, …)
        hosts["beta"].stop()

All files are below one temporary directory: keys, the user's known_hosts, and a home directory for
each server's sessions. Nothing in the user's own home is read or run, because a session that is
killed while it executes start-up files could leave locks there. A server can also run on a Lab host
(`lab`), and then uses port 22 at that host's address.
"""

import functools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from conftest import LIMIT_S
from netlab import Lab

from relight.host.linux import die_with_parent

PROGRAM = "/usr/sbin/sshd"
PACKAGE = "openssh-server"
CONFIG = """
HostKey {key}
AuthorizedKeysFile {authorized}
PidFile none
ListenAddress {address}
Port {port}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
UseDNS no
MaxStartups 100:30:200
SetEnv {variables}
"""


@functools.cache
def sshd_unavailable() -> str:
    """Return why sshd can't run on this machine, or an empty string if it can."""
    if not os.path.exists(PROGRAM):
        return f"no {PROGRAM} (Debian: {PACKAGE})"
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: openssh-client)"
    return ""


class Server:
    """One sshd. `directory` holds its files; it listens at `address` and `port`."""

    def __init__(self, name: str, directory: Path, keys: Path) -> None:
        self.name, self.directory, self.keys = name, directory, keys
        self.address, self.port = "127.0.0.1", 0
        self.process: subprocess.Popen[bytes] | None = None
        self.home.mkdir(parents=True)
        _make_key(directory / "key")

    @property
    def host(self) -> str:
        """The host in the format of `-cfg hosts=`."""
        return f"{self.address}:{self.port}"

    @property
    def home(self) -> Path:
        """The sessions' home directory."""
        return self.directory / "home"

    @property
    def state(self) -> Path:
        """The sessions' RELIGHT_STATE_DIR."""
        return self.directory / "state"

    def public_key(self) -> str:
        """The server's public key, in the format of known_hosts."""
        return " ".join((self.directory / "key.pub").read_text().split()[:2])

    def start(self, lab: Lab | None = None, **variables: str) -> None:
        """Start the server and return once it responds; sessions get these variables."""
        if lab is not None:
            self.address, self.port = lab[self.name].address, 22
        elif not self.port:
            with socket.create_server((self.address, 0)) as server:
                self.port = server.getsockname()[1]
        own = {"HOME": str(self.home), "RELIGHT_STATE_DIR": str(self.state), "ON": self.name}
        own |= variables
        config = self.directory / "config"
        config.write_text(
            CONFIG.format(
                key=self.directory / "key",
                authorized=self.keys / "authorized",
                address=self.address,
                port=self.port,
                variables=" ".join(f"{name}={value}" for name, value in own.items()),
            )
        )
        with (self.directory / "log").open("ab") as log:
            command = [PROGRAM, "-D", "-e", "-f", str(config)]
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            if lab is None:
                self.process = subprocess.Popen(
                    command,
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(signal.SIGKILL),
                    **options,
                )
            else:
                self.process = lab[self.name].start(command, **options)
        end = time.monotonic() + LIMIT_S
        while b"Server listening" not in (self.directory / "log").read_bytes():
            assert self.process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server; its sessions continue."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(LIMIT_S)
            self.process = None
            (self.directory / "log").write_text("")

    def sessions(self) -> list[int]:
        """The pids of the processes that serve connections."""
        assert self.process is not None
        found, below = [], [self.process.pid]
        while below:
            pid = below.pop()
            for child in map(int, _read(f"/proc/{pid}/task/{pid}/children").split()):
                if _read(f"/proc/{child}/comm").startswith("sshd"):
                    found.append(child)
                    below.append(child)
        return found

    def log(self) -> str:
        """The last part of the server's log."""
        return (self.directory / "log").read_text(errors="replace")[-2000:]


class Sshd:
    """Servers that accept one user key, and the ssh options for reaching them.

    Args:
        names: The servers' names.
        lab: A Lab whose hosts of the same names run the servers; this machine if None.
    """

    def __init__(self, names: Sequence[str], lab: Lab | None = None) -> None:
        self.names, self.lab = names, lab
        self.directory = Path(tempfile.mkdtemp(prefix="sshd-"))
        self.servers: dict[str, Server] = {}

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def __enter__(self) -> "Sshd":
        try:
            if os.geteuid() == 0:
                os.makedirs("/run/sshd", 0o755, exist_ok=True)  # sshd requires it
            _make_key(self.directory / "id")
            shutil.copy(self.directory / "id.pub", self.directory / "authorized")
            for name in self.names:
                server = Server(name, self.directory / name, self.directory)
                self.servers[name] = server
                server.start(self.lab)
            self.know()
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

    def know(self) -> None:
        """Write the keys of all servers to known_hosts."""
        lines = [
            f"[{server.address}]:{server.port} {server.public_key()}\n"
            if server.port != 22
            else f"{server.address},{server.name} {server.public_key()}\n"
            for server in self.servers.values()
        ]
        (self.directory / "known_hosts").write_text("".join(lines))

    def cfg(self, *names: str) -> dict[str, Any]:
        """The scheduler options for reaching the named servers, or all servers."""
        ours = {"UserKnownHostsFile": self.directory / "known_hosts", "IdentitiesOnly": "yes"}
        ours["GlobalKnownHostsFile"] = "/dev/null"
        words = ["-F", "none"]
        for name, value in ours.items():
            words += ["-o", f"{name}={value}"]
        return {
            "hosts": [self.servers[name].host for name in names or self.names],
            "identity": str(self.directory / "id"),
            "ssh_args": shlex.join(words),
        }

    def close(self) -> None:
        """End the servers and their sessions, and remove their files."""
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                for pid in server.sessions():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass  # it has just exited
                server.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has exited
        return ""
