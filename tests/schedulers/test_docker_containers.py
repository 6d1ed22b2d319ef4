"""Containers on a real daemon: mounts, ports, images and logs."""

import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusters import registry
from clusters.docker import Dockerd, shell

from relight.base.errors import MachineError
from relight.job.app import AppDef, BindMount, DeviceMount, Resource, VolumeMount
from relight.schedulers.api import LogQuery
from relight.schedulers.docker import scheduler as docker
from relight.schedulers.docker.logs import seconds
from schedulers.docker_jobs import RUNNING, SUCCEEDED, Jobs, daemon, jobs, run, sh  # noqa: F401  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.needs_docker]


class Proxy:
    """A socket that forwards to the daemon's until it is closed."""

    def __init__(self, daemon: Dockerd) -> None:
        self.target = str(daemon.directory / "docker.sock")
        self.path = str(daemon.directory / "proxy.sock")
        self.host = f"unix://{self.path}"
        self.open: list[socket.socket] = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen()
        self.accepting = threading.Thread(target=self._accept)
        self.accepting.start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and accept no more."""
        if not os.path.exists(self.path):
            return
        os.unlink(self.path)
        self.server.shutdown(socket.SHUT_RDWR)
        self.accepting.join()
        self.server.close()
        for end in self.open:
            end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                here = self.server.accept()[0]
            except OSError:
                return
            there = socket.socket(socket.AF_UNIX)
            there.connect(self.target)
            self.open += [here, there]
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass


@pytest.mark.needs_fuse
def test_mounts_and_devices_appear_at_the_requested_paths(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from here")
    mounts = (
        BindMount(str(tmp_path), "/rw"),
        BindMount(str(tmp_path), "/ro", read_only=True),
        VolumeMount("cache", "/cache"),
        DeviceMount("/dev/fuse", "/dev/here", "r"),  # /dev/zero and similar devices are open to all
    )
    text = (
        "cat /ro/in > /rw/out; touch /ro/x || echo no; echo v >> /cache/v; cat /cache/v;"
        ": < /dev/here && echo device; echo > /dev/here || echo locked"
    )
    for lines in (["no", "v"], ["no", "v", "v"]):
        app_id = jobs.submit(sh(text, mounts=mounts))
        jobs.wait(app_id)
        said = jobs.lines(app_id, stream="stdout")
        assert said == [*lines, "device", "locked"], jobs.lines(app_id)
    assert (tmp_path / "out").read_text() == "from here"


def test_published_port_is_reachable_on_loopback(jobs: Jobs) -> None:
    """It is the loopback interface of the daemon's machine."""
    server = (
        "import socketserver; H = type('H', (socketserver.BaseRequestHandler,), "
        "{'handle': lambda s: s.request.sendall(b'hello')}); "
        "socketserver.TCPServer(('', 8080), H).serve_forever()"
    )
    its = sh("", entrypoint="/usr/bin/python3", args=("-c", server), port_map={"http": 8080})
    jobs.submit(its, publish=["http:9090"])
    client = "import socket; s = socket.create_connection(('127.0.0.1', 9090)); print(s.recv(9))"
    command = [*jobs.daemon.enter(), sys.executable, "-c", client]
    jobs.until(lambda: run(command) == (0, "b'hello'"))


def test_workspace_becomes_an_image_layer(jobs: Jobs, tmp_path: Path) -> None:
    """The layer is on top of the role's image and omits ignored files."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (tmp_path / "sub" / "run.sh").chmod(0o755)
    (tmp_path / "big.bin").write_text("big")
    (tmp_path / ".dockerignore").write_text("*.bin\n")
    its = sh("sub/run.sh; [ -e big.bin ] || echo small")
    app_id = jobs.submit(its, workspace=str(tmp_path), quiet=True)
    jobs.wait(app_id)
    assert jobs.lines(app_id) == ["it runs", "small"]


def test_empty_workspace_is_accepted(jobs: Jobs, tmp_path: Path) -> None:
    """All of the directory's files are ignored."""
    (tmp_path / "x").write_text("x")
    (tmp_path / ".relightignore").write_text("*\n")
    assert jobs.wait(jobs.submit(sh("[ ! -e x ]"), workspace=str(tmp_path))).state is SUCCEEDED


@pytest.mark.parametrize("name", ["Dockerfile.relight", "Dockerfile.torchx"])
def test_workspace_dockerfile_builds_image(name: str, jobs: Jobs, tmp_path: Path) -> None:
    """This works even if the Dockerfile itself is ignored."""
    (tmp_path / "x").write_text("x")
    (tmp_path / name).write_text("ARG IMAGE\nFROM $IMAGE\nENV FROM_FILE=yes\nCOPY x /elsewhere/\n")
    (tmp_path / ".relightignore").write_text("Dockerfile*\n")
    app_id = jobs.submit(sh("echo $FROM_FILE; cat /elsewhere/x"), workspace=str(tmp_path))
    jobs.wait(app_id)
    assert jobs.lines(app_id) == ["yes", "x"]


@contextmanager
def serving(jobs: Jobs, tmp_path: Path) -> Iterator[str]:
    """Start a registry, and yield its address in the daemon's network."""
    (tmp_path / "layer").write_bytes(shell())
    command = [*jobs.daemon.enter(), sys.executable, registry.__file__, "5000", tmp_path / "layer"]
    command.append(jobs.daemon.client.version()["Arch"])
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            probe = "import socket; socket.create_connection(('127.0.0.1', 5000))"
            enter = [*jobs.daemon.enter(), sys.executable, "-c", probe]
            jobs.until(lambda: run(enter)[0] == 0)
            yield "127.0.0.1:5000"
        finally:
            server.kill()


def test_workspace_is_pushed_for_machines_that_pull_it(jobs: Jobs, tmp_path: Path) -> None:
    """The machine that pushes it keeps no image."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "run.sh").write_text("echo it runs\n")
    name = "test/team"
    with serving(jobs, tmp_path) as address:
        base = sh("sh run.sh", image=f"{address}/test/shell:1", resource=Resource(1, 0, 64))
        place = str(project), "job-x7", f"{address}/{name}"
        app, images = jobs.scheduler.with_workspace(AppDef("job", [base]), *place)
        (pushed,) = app.roles
        assert pushed.image == f"{address}/{name}:job-x7"
        jobs.scheduler.push_images(images, "job-x7", quiet=True)
        assert jobs.daemon.client.images(name=pushed.image) == []
        app_id = jobs.submit(pushed, quiet=True)
        assert jobs.wait(app_id).state is SUCCEEDED
        assert jobs.lines(app_id) == ["it runs"]
    with pytest.raises(MachineError, match=f"can't push {pushed.image}: "):
        jobs.scheduler.push_images(images, "job-x7", quiet=True)
    jobs.daemon.clear()
    jobs.daemon.client.remove_image(base.image)


def test_missing_image_is_pulled(
    jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message on stderr says so. An existing image isn't pulled."""
    its = sh("echo pulled", image="127.0.0.1:5000/test/shell:1", resource=Resource(1, 0, 64))
    with serving(jobs, tmp_path):
        app_id = jobs.submit(its)
        assert capsys.readouterr() == ("", f"relight: pulling {its.image}\n")
        assert jobs.wait(app_id).state is SUCCEEDED
        assert jobs.lines(app_id) == ["pulled"]
        jobs.submit(its, pull="always", quiet=True)
        with pytest.raises(MachineError, match=r"can't pull the image 127.*:2: .*unknown"):
            jobs.submit(sh("", image="127.0.0.1:5000/test/shell:2"), quiet=True)
    assert jobs.wait(jobs.submit(its)).state is SUCCEEDED
    with pytest.raises(MachineError, match="can't pull the image"):
        jobs.submit(its, pull="always")
    with pytest.raises(MachineError, match="No such image"):
        jobs.submit(sh("", image="127.0.0.1:5000/test/shell:3"), pull="never")
    jobs.daemon.clear()
    jobs.daemon.client.remove_image(its.image)


def test_followed_logs_end_when_replica_exits(jobs: Jobs) -> None:
    """Lines appear while it is running."""
    app_id = jobs.submit(sh("echo one; sleep 1; echo two"))
    lines = jobs.scheduler.logs(app_id, LogQuery("main", 0, follow=True))
    assert next(lines) == "one"
    assert jobs.status(app_id).state is RUNNING
    assert list(lines) == ["two"]


def test_long_lines_on_stdout_and_stderr_stay_whole(jobs: Jobs) -> None:
    """Docker splits them, and the streams alternate."""
    text = (
        "import sys, time\n"
        "for end in '', '', '\\n':\n"
        "    for file, char in (sys.stdout, 'o'), (sys.stderr, 'e'):\n"
        "        file.write(char * 9000 + end); file.flush(); time.sleep(0.1)\n"
    )
    app_id = jobs.submit(sh("", entrypoint="/usr/bin/python3", args=("-c", text)))
    assert jobs.wait(app_id).state is SUCCEEDED
    assert sorted(jobs.lines(app_id)) == ["e" * 27000, "o" * 27000]


# The client doesn't close sockets that it failed to connect.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loss_of_the_daemon_is_reported_on_one_line(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for followed logs and for the status."""
    app_id = jobs.submit(sh("echo up; sleep 1000"))
    with Proxy(jobs.daemon) as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.host)
        scheduler = docker.Docker()
        try:
            lines = scheduler.logs(app_id, LogQuery("main", 0, follow=True))
            assert next(lines) == "up"
            assert scheduler.status([app_id])[app_id].state is RUNNING
            proxy.close()
            for look in (lambda: next(lines), lambda: scheduler.status([app_id])):
                with pytest.raises(
                    MachineError, match="no response from the Docker daemon"
                ) as found:
                    look()
                assert "\n" not in found.value.message
                del found
        finally:
            scheduler.close()
    gc.collect()


def test_logs_can_be_limited_to_a_time_range(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("echo one; sleep 0.2; echo two; sleep 0.2; echo three"))
    jobs.wait(app_id)
    container = jobs.daemon.containers()[0]["Id"]
    said = jobs.daemon.client.logs(container, timestamps=True).decode().splitlines()
    first, second, third = [seconds(line.split()[0]) for line in said]
    since = datetime.fromtimestamp((first + second) / 2, UTC)
    until = datetime.fromtimestamp((second + third) / 2, UTC)
    assert jobs.lines(app_id, since=since) == ["two", "three"]
    assert jobs.lines(app_id, until=until) == ["one", "two"]
    assert jobs.lines(app_id, since=since, until=until) == ["two"]
