"""The request to Docker for an app, and a job's status, without a daemon."""

import io
import json
import os
import re
import shlex
import socket
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.job import launcher_file
from relight.job.app import (
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
)
from relight.schedulers.docker import replicas
from relight.schedulers.docker import scheduler as docker
from relight.schedulers.docker.request import (
    Label,
    build_request,
    check_repository,
    container_names,
)

NO_VARIABLES = Environment({})
EFA = "vpc.amazonaws.com/efa"


def role(name: str = "trainer", **parts: Any) -> Role:
    return Role(**{"name": name, "image": "img:1", "entrypoint": "run", **parts})


def body(*roles: Role, variables: Environment = NO_VARIABLES, **cfg: Any) -> dict[str, Any]:
    return build_request(AppDef("app", roles), cfg, "app-x7k2m", variables)


def configs(*roles: Role, **cfg: Any) -> list[dict[str, Any]]:
    return [container["config"] for container in body(*roles, **cfg)["containers"]]


def variables_of(config: dict[str, Any]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in config["Env"])


@pytest.mark.parametrize(
    ("command", "launcher", "brings_it"),
    [
        ("relight run x.py", "auto", True),
        ("relight run x.py", "travels", True),
        ("relight run x.py", "installed", False),
        ("torchrun x.py", "auto", False),
    ],
)
def test_launcher_is_included_only_if_job_needs_it(
    command: str, launcher: str, brings_it: bool
) -> None:
    its = role(entrypoint="bash", args=("-c", command), env={launcher_file.VARIABLE: launcher})
    request = docker.Docker().render(AppDef("app", [its]), {}, "app-x7k2m")
    (container,) = request.body["containers"]
    assert container["has_launcher"] is brings_it
    assert (container["config"]["Cmd"][0] == "sh") is brings_it
    assert ("with the launcher in /opt/relight" in request.text) is brings_it


def test_each_replica_runs_in_its_own_container() -> None:
    """Each container has the role's command with expanded macros, and labels."""
    args = ("--id=${app_id}", "${replica_id}", "$${${rank0_env}:=localhost}", "$$ ${x} $HOME")
    its = role(args=args, num_replicas=2, resource=Resource(2, 0, 1024))
    found = body(its)
    assert [c["name"] for c in found["containers"]] == [
        "app-x7k2m-trainer-0",
        "app-x7k2m-trainer-1",
    ]
    config = found["containers"][1]["config"]
    assert config["Image"] == "img:1"
    expected = ["run", "--id=app-x7k2m", "1", "${RELIGHT_RANK0_HOST:=localhost}", "$$ ${x} $HOME"]
    assert config["Cmd"] == expected
    assert config["Hostname"] == "app-x7k2m-trainer-1"
    host = config["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (2 * 10**9, 2**30, 2**30)
    assert host["NetworkMode"] == found["network"] == "relight"
    assert config["Labels"]["torchx.pytorch.org/app-id"] == "app-x7k2m"
    assert config["Labels"]["relight/replica"] == "1"
    variables = variables_of(config)
    assert variables["TORCHX_RANK0_HOST"] == variables["RELIGHT_RANK0_HOST"]
    assert variables["RELIGHT_RANK0_HOST"] == "app-x7k2m-trainer-0"
    assert variables["TORCHX_IMAGE"] == variables["RELIGHT_IMAGE"] == "img:1"


def test_container_without_resources_has_no_limits() -> None:
    """/dev/shm has Docker's default size."""
    host = configs(role())[0]["HostConfig"]
    assert not {"NanoCpus", "Memory", "ShmSize", "DeviceRequests", "RestartPolicy"} & set(host)
    assert configs(role(), shm_size="2g")[0]["HostConfig"]["ShmSize"] == 2 << 30


def test_request_with_gpus_and_mounts_is_plain_json() -> None:
    """Nothing besides the request is sent."""
    mounts = (
        BindMount("/a", "/b", read_only=True),
        VolumeMount("v", "/v"),
        DeviceMount("/dev/x", "/dev/y", "rw"),
    )
    its = role(mounts=mounts, resource=Resource(2, 1, 10, devices={EFA: 1}), max_retries=2)
    request = docker.Docker().render(AppDef("app", (its,)), {}, "app-x7k2m")
    host = json.loads(json.dumps(request.body))["containers"][0]["config"]["HostConfig"]
    assert host["Mounts"] == [
        {"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True},
        {"Type": "volume", "Source": "v", "Target": "/v", "ReadOnly": False},
    ]
    paths = [
        (d["PathOnHost"], d["PathInContainer"], d["CgroupPermissions"]) for d in host["Devices"]
    ]
    assert paths == [
        ("/dev/x", "/dev/y", "rw"),
        ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0", "rwm"),
    ]
    assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 2}
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0"]
    for word in ("--mount=type=bind,src=/a,dst=/b,readonly", "--restart=on-failure:2"):
        assert word in request.text


def test_replicas_on_one_host_do_not_share_devices() -> None:
    """GPUs and numbered devices are divided among all roles."""
    roles = (
        role("a", num_replicas=2, resource=Resource(1, 2, 1, devices={EFA: 2})),
        role("b", resource=Resource(1, 1, 1, devices={EFA: 1})),
    )
    hosts = [config["HostConfig"] for config in configs(*roles)]
    assert [h["DeviceRequests"][0]["DeviceIDs"] for h in hosts] == [["0", "1"], ["2", "3"], ["4"]]
    assert [[d["PathOnHost"][-1] for d in h["Devices"]] for h in hosts] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]
    chosen = configs(*roles, gpus=["GPU-a", "7", "6", "5", "4"])
    assert chosen[1]["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["6", "5"]
    assert chosen[1]["Labels"]["relight/gpus"] == "6,5"
    with pytest.raises(UsageError, match="5 GPUs requested, but -cfg gpus lists 1"):
        configs(*roles, gpus=["0"])


def test_role_variables_override_option_and_copied_variables() -> None:
    """Options take precedence over copied variables."""
    variables = Environment({"A1": "shell", "A2": "shell", "A3": "shell", "B": "no"})
    its = role(env={"A1": "role"})
    found = body(its, variables=variables, copy_env=["A*"], env={"A1": "cfg", "A2": "cfg"})
    seen = variables_of(found["containers"][0]["config"])
    assert [seen[name] for name in ("A1", "A2", "A3")] == ["role", "cfg", "shell"]
    assert "B" not in seen


def test_port_is_published_only_on_request() -> None:
    """Each replica has its own port on the loopback interface of the daemon's machine."""
    its = role(num_replicas=2, port_map={"http": 8080, "c10d": 29500})
    assert "PortBindings" not in configs(its)[0]["HostConfig"]
    found = [config["HostConfig"]["PortBindings"] for config in configs(its, publish=["http:90"])]
    assert found == [
        {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": port}]} for port in ("90", "91")
    ]
    with pytest.raises(UsageError, match="no role has port htp") as caught:
        configs(its, publish=["htp"])
    assert caught.value.hint == "did you mean http?"
    with pytest.raises(UsageError, match="would both publish port 8080"):
        configs(its, role("other", port_map={"http": 8080}), publish=["http"])
    with pytest.raises(UsageError, match="is not a port"):
        configs(its, publish=["http:99999"])


@pytest.mark.parametrize(
    ("parts", "cfg", "said"),
    [
        ({"image": "<NONE>"}, {}, "trainer has no image"),
        ({"image": ""}, {}, "trainer has no image"),
        ({"mounts": (BindMount("/a", "b"),)}, {}, "container paths start with /"),
        ({}, {"shm_size": "lots"}, "shm_size=lots: not a size"),
        ({}, {"workspace": "/no/such/place"}, "/no/such/place is not a directory"),
    ],
)
def test_app_that_docker_cannot_run_is_rejected(
    parts: dict[str, Any], cfg: dict[str, Any], said: str
) -> None:
    """It is a usage error, raised before anything is sent."""
    with pytest.raises(UsageError, match=said):
        body(role(**parts), **cfg)


def test_replicas_on_host_network_rendezvous_on_localhost() -> None:
    """They keep the host's name."""
    config = configs(role(), network="host")[0]
    assert variables_of(config)["RELIGHT_RANK0_HOST"] == "localhost"
    assert "Hostname" not in config


def test_network_without_dns_causes_a_note() -> None:
    """Replicas can't find each other there."""
    app = AppDef("app", (role(num_replicas=2),))
    for network in ("bridge", "none"):
        (note,) = docker.Docker().render(app, {"network": network}, "app-x7k2m").notes
        assert network in note
    for its, network in ((app, "own"), (app, "host"), (AppDef("app", (role(),)), "bridge")):
        assert docker.Docker().render(its, {"network": network}, "app-x7k2m").notes == ()


def test_dry_run_shows_one_shell_command_per_container() -> None:
    """It has all arguments, wrapped for readability."""
    words = ("-c", "echo 'a b'; echo $HOME")
    its = role(args=words, env={"A": "x y"}, resource=Resource(2, 1, 10))
    text = docker.Docker().render(AppDef("app", (its,)), {}, "app-x7k2m").text
    (command,) = text.replace("\\\n", "").splitlines()[1:]
    split = shlex.split(command)
    assert split[:3] == ["docker", "run", "--detach"]
    assert split[-4:] == ["img:1", "run", *words]
    assert {"--env=A=x y", "--cpus=2", '--gpus="device=0"'} < set(split)
    assert " \\\n  '--env=A=x y' \\\n" in text


def test_workspace_is_sent_only_on_request() -> None:
    """Without --workspace, the image is used unchanged."""
    assert body(role())["builds"] == []


def test_dry_run_with_workspace_builds_no_image(tmp_path: Path) -> None:
    """It says what would be built, once for each image."""
    roles = (role("a"), role("b"), role("c", image="other"))
    found = body(*roles, workspace=str(tmp_path))
    assert [build["base"] for build in found["builds"]] == ["img:1", "other"]
    images = [container["config"]["Image"] for container in found["containers"]]
    assert images == [found["builds"][number]["image"] for number in (0, 0, 1)]


@pytest.mark.parametrize(
    "name",
    [
        "reg.io/app:latest",
        "reg.io/Team/app",
        "Team/app",
        f"app@sha256:{'0' * 64}",
        "reg.io/",
        "a b",
    ],
)
def test_rejects_image_repo_that_is_no_repository(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"^-cfg image_repo={name}: expected a repository"
    ) as error:
        docker.Docker().with_workspace(AppDef("app", (role(),)), "/", "app-x7k2m", name)
    assert error.value.hint == "-cfg image_repo=registry.example/team/train"


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "team/train",
        "localhost/train",
        "localhost:5000/team/my__train-2",
        "[::1]:5000/train",
        "123456.dkr.ecr.us-east-1.amazonaws.com/team/train.v2",
        "REG.example:5000/train",
    ],
)
def test_accepts_image_repo(name: str) -> None:
    check_repository(name)


def test_secrets_in_request_are_redacted() -> None:
    """The printed request hides values with secret-looking names."""
    its = role(env={"API_TOKEN": "s3cret", "PLAIN": "seen"}, args=("--password", "hunter2"))
    text = docker.Docker().render(AppDef("app", (its,)), {}, "app-x7k2m").text
    assert "s3cret" not in text and "hunter2" not in text
    assert "PLAIN=seen" in text


def test_options_without_effect_cause_notes() -> None:
    """These are a device without a known file, and a policy that Docker doesn't support."""
    its = role(resource=Resource(1, 0, 1, devices={"x.org/y": 1}), max_retries=1)
    notes = docker.Docker().render(AppDef("app", (its,)), {}, "app-x7k2m").notes
    assert len(notes) == 2 and "x.org/y" in notes[0]
    alone = role(max_retries=1, retry_policy=RetryPolicy.REPLICA)
    assert docker.Docker().render(AppDef("app", (alone,)), {}, "app-x7k2m").notes == ()


@given(
    app_id=st.text(min_size=1, max_size=80),
    names=st.lists(st.text(max_size=40), min_size=1, max_size=4),
    replicas=st.integers(1, 12),
)
def test_container_names_are_valid_hostnames_and_unique(
    app_id: str, names: list[str], replicas: int
) -> None:
    """They are hostnames ending in the random part of the app's id, whatever the names of the app
    and its roles.
    """
    app = AppDef("a", tuple(role(name, num_replicas=replicas) for name in names))
    app_id += "-x7k2mb9"
    found = [name for its in container_names(app, app_id) for name in its]
    assert len(set(found)) == len(names) * replicas
    for name in found:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])", name)
        assert "x7k2mb9" in name


def test_missing_client_error_shows_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dry run still works."""
    monkeypatch.setitem(sys.modules, "docker", None)
    scheduler = docker.Docker()
    scheduler.render(AppDef("app", (role(),)), {}, "app-x7k2m")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert scheduler.affinity() == 0
    with pytest.raises(UsageError, match="requires the docker package") as caught:
        scheduler.list()
    assert caught.value.hint == "pip install 'docker>=7', in relight's environment"


@pytest.mark.needs_docker_client
def test_unreachable_daemon_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the address and the reason."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    scheduler = docker.Docker()
    assert scheduler.affinity() == 0
    with pytest.raises(MachineError, match=r"none\.sock: No such file or directory") as caught:
        scheduler.list()
    assert "\n" not in caught.value.message


@pytest.mark.needs_docker_client
def test_inaccessible_socket_error_shows_the_required_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    user = os.geteuid()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        try:
            os.seteuid(user or 65534)  # root may use any socket
            with pytest.raises(MachineError, match="Permission denied") as caught:
                docker.Docker().list()
        finally:
            os.seteuid(user)
    assert "docker group" in caught.value.hint


@pytest.mark.needs_docker_client
def test_missing_ssh_package_error_shows_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon over ssh requires an additional package."""
    from docker.api import client

    monkeypatch.delattr(client, "SSHHTTPAdapter", raising=False)  # as if it weren't installed
    monkeypatch.setenv("DOCKER_HOST", "ssh://nobody@127.0.0.1:1")
    with pytest.raises(UsageError, match="requires the paramiko package"):
        docker.Docker().list()


@pytest.mark.needs_docker_client
@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "nonsense", "gopher://x"])
def test_error_includes_the_invalid_docker_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is a single line."""
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(
        MachineError, match=f"no response from the Docker daemon at {host}"
    ) as caught:
        docker.Docker().list()
    assert "\n" not in caught.value.message


class Daemon:
    """A client of a daemon whose containers have an agent's error file."""

    def __init__(self, **reports: bool) -> None:
        self.reports = reports

    def get_archive(self, container_id: str, path: str) -> tuple[list[bytes], dict[str, int]]:
        """Return the error file. The failure is the same for all agents."""
        report = {"message": "m", "headline": "rank 1 failed", "is_own": self.reports[container_id]}
        text, packed = json.dumps(report).encode(), io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        return [packed.getvalue()], {"size": len(text)}


@pytest.mark.parametrize("mark", ["", replicas.STOPPED])
def test_failure_reason_names_the_replica_whose_worker_failed(mark: str) -> None:
    """It isn't always the first one to exit, and may have been stopped for another's failure."""
    daemon, labels = Daemon(one=False, two=True, three=False), {Label.ROLE: "main"}
    found = [
        replicas.with_cause(
            daemon,
            replicas.Container(
                name, name, mark if number else "", {**labels, Label.REPLICA: str(number)},
                AppState.CANCELLED if mark and number else AppState.FAILED, 0.0, 7, 0, "",
            ),
        )
        for number, name in enumerate(daemon.reports)
    ]  # fmt: skip
    status = replicas.status(found)
    assert status.message == "main/1 failed with exit code 7: rank 1 failed"
    states = [AppState.FAILED, AppState.FAILED, AppState.CANCELLED if mark else AppState.FAILED]
    assert [replica.state for replica in status.replicas] == states


def test_files_of_cancelled_container_are_not_downloaded() -> None:
    cancelled = replicas.Container(
        "c", "c", replicas.CANCELLED, {}, AppState.CANCELLED, 0.0, 143, 0, ""
    )
    assert replicas.with_cause(object(), cancelled) is cancelled
