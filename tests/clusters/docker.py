"""A private Docker daemon, with an image of this machine's Python.

    with Dockerd() as daemon:
        subprocess.run(["docker", "ps"], env={"DOCKER_HOST": daemon.host, ...})

The daemon and its containers live in their own namespaces. They only share a network with each
other, and nothing outlives the `with` block. State, images, and the socket are below one temporary
directory.
"""

import functools
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from conftest import LIMIT_S

import relight

PACKAGE = "docker.io"
IMAGE = "relight-test:1"
PYTHON = "/usr/bin/python3"
# dockerd is in sbin, often missing from PATH.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
PROGRAMS = ("dockerd", "docker-init", "unshare", "ip", "bash", PYTHON)
NOT_NEEDED = ("test", "idlelib", "tkinter", "lib2to3", "ensurepip", "dist-packages", "__pycache__")


@functools.cache
def docker_unavailable() -> str:
    """Return why this machine can't run a Docker daemon, or an empty string if it can."""
    if os.geteuid() != 0:
        return "a Docker daemon needs root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: {PACKAGE})"
    probe = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([PYTHON, "-c", probe], check=False).returncode:
        return f"{PYTHON} is older than 3.11"
    try:
        import docker
    except ImportError:
        return "no Python package docker"
    del docker
    return ""


class DockerFailed(Exception):
    """The daemon exited or never responded."""


class Dockerd:
    """A running daemon. `host` is its address and `client` the low-level client from docker-py."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dockerd-"))
        self.host = f"unix://{self.directory}/docker.sock"
        self.parent = f"/{self.directory.name}"
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Any = None

    def __enter__(self) -> "Dockerd":
        try:
            self._start()
            self._import_image()
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

    def containers(self) -> list[dict[str, Any]]:
        """All containers, including stopped ones."""
        return list(self.client.containers(all=True))

    def clear(self) -> None:
        """Remove all containers."""
        for container in self.containers():
            self.client.remove_container(container["Id"], v=True, force=True)

    def enter(self) -> list[str]:
        """The command prefix that runs a command on the daemon's network."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return ["nsenter", f"--net=/proc/{children.read_text().split()[0]}/ns/net", "--"]

    def close(self) -> None:
        """End the daemon and everything that it started."""
        if self.client is not None:
            try:
                self.clear()
            except Exception:  # it is killed below
                pass
            self.client.close()
        if self.process is not None:
            # When the first process in a PID namespace ends, so do all the others.
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(LIMIT_S)
        self._remove_cgroups()
        end = time.monotonic() + LIMIT_S
        while self.directory.exists():  # its last processes may still be exiting
            shutil.rmtree(self.directory, ignore_errors=True)
            assert time.monotonic() < end, f"{self.directory} can't be removed"
            time.sleep(0.05)

    def log(self) -> str:
        """The last part of the daemon's output."""
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def _start(self) -> None:
        d = self.directory
        flags = [f"--data-root={d}/data", f"--exec-root={d}/exec", f"--pidfile={d}/pid"]
        flags += [f"--host={self.host}", "--bridge=none", "--iptables=false", "--ip-masq=false"]
        flags += ["--ip-forward=false", f"--cgroup-parent={self.parent}", "--log-level=warn"]
        own = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with (d / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*own, "sh", "-c", 'ip link set lo up && exec dockerd "$@"', "dockerd", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": PATH, "HOME": str(d)},
            )
        import docker

        end = time.monotonic() + LIMIT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise DockerFailed(f"dockerd did not start:\n{self.log()}")
            time.sleep(0.05)
        self.client = docker.APIClient(base_url=self.host, version="auto", timeout=LIMIT_S)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.directory / "docker.sock")) == 0

    def _import_image(self) -> None:
        file = self.directory / "image.tar"
        with tarfile.open(file, "w") as tar:
            for name in ("tmp", "work", "proc", "sys", "dev"):
                member = tarfile.TarInfo(name)
                member.type, member.mode = tarfile.DIRTYPE, 0o1777
                tar.addfile(member)
            _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
            _add_text(tar, "etc/nsswitch.conf", "hosts: files dns\n")
            relight_command = f'#!/bin/sh\nexec {PYTHON} -m relight "$@"\n'
            _add_text(tar, "usr/bin/relight", relight_command, mode=0o755)
            tar.dereference = True
            for name, path in sorted(_files().items()):
                tar.add(path, name, recursive=False)
        changes = ["ENV PATH=/usr/bin:/bin", "ENV PYTHONPATH=/opt", "WORKDIR /work"]
        name, tag = IMAGE.split(":")
        self.client.import_image_from_file(str(file), name, tag, changes=changes)
        file.unlink()

    def _remove_cgroups(self) -> None:
        for top in Path("/sys/fs/cgroup").glob(f"**{self.parent}"):
            for path in sorted(top.rglob("*"), reverse=True):
                if path.is_dir():
                    _remove_directory(path)
            _remove_directory(top)


def _files() -> dict[str, str]:
    """The files in the image: file names there, mapped to files on this machine."""
    found = {"usr/bin/python3": PYTHON, "bin/sh": "/bin/bash", "bin/bash": "/bin/bash"}
    found |= {f"bin/{name}": f"/bin/{name}" for name in ("sleep", "cat", "touch")}
    where = subprocess.run(
        [PYTHON, "-c", "import os; print(os.path.dirname(os.__file__))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    found |= {path.lstrip("/"): path for path in _below(where)}
    programs = [path for name, path in found.items() if name.endswith(".so") or "bin/" in name]
    found |= _libraries(*programs)
    package = os.path.dirname(relight.__file__)
    return found | {f"opt/relight{path[len(package) :]}": path for path in _below(package)}


def shell() -> bytes:
    """Return an image layer that can run a shell, as a tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.dereference = True
        for name, path in {"bin/sh": "/bin/bash", **_libraries("/bin/bash")}.items():
            tar.add(path, name, recursive=False)
    return file.getvalue()


def _libraries(*programs: str) -> dict[str, str]:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {path.lstrip("/"): path for path in re.findall(r"(?:=> )?(/\S+) \(0x", said)}


def _below(top: str) -> Iterator[str]:
    for directory, names, files in os.walk(top):
        names[:] = [n for n in names if n not in NOT_NEEDED and not n.startswith("config-3")]
        yield from (os.path.join(directory, name) for name in files)


def _add_text(tar: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text), mode
    tar.addfile(member, io.BytesIO(text.encode()))


def _remove_directory(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        pass  # removed with its last process, or not empty yet
