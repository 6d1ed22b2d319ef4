"""Submitting from within a pod, to the pod's own cluster and with its service account.

Some commands see the files where a kubelet mounts them, in their own mount namespace. The others
run in this process and read them from a test directory. The fake API server
(`clusters/kubernetes.py`) uses TLS and requires the token.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import ApiServer
from conftest import LIMIT_S, RELIGHT, Launch, long
from etcd_server import make_certificates, wait_for

from relight.schedulers.kubernetes import cluster

pytestmark = [
    pytest.mark.needs_kubernetes,
    pytest.mark.needs_openssl,
]
UNSHARE = ("unshare", "--mount", "--map-root-user")
MOUNT = (
    "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && "
    'cp -r "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
"""/var/run is /run."""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, make_certificates(tmp_path / "certificates")) as server:
        server.kubeconfig.unlink()
        server.token = "secret"
        yield server


@pytest.fixture
def account(server: ApiServer, tmp_path: Path) -> Path:
    """Create a service account's files."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    shutil.copy(tmp_path / "certificates" / "ca.pem", folder / "ca.crt")
    (folder / "token").write_text(server.token)
    (folder / "namespace").write_text("team-a")
    return folder


@pytest.fixture
def variables(server: ApiServer, tmp_path: Path) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "HOME": str(tmp_path / "home"),
        "RELIGHT_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture
def in_pod(
    in_process: Launch,
    variables: dict[str, str],
    account: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Run a relight command in the pod."""
    from kubernetes.config import incluster_config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "_IN_CLUSTER", str(account))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    return lambda *words, **more: in_process(*words, **{**variables, **more})


@pytest.fixture
def mounted(launch: Launch, variables: dict[str, str], account: Path) -> Command:
    """Run a relight command in a process that finds the files where a kubelet mounts them."""
    command = (*UNSHARE, "sh", "-c", MOUNT, str(account), *RELIGHT)
    return lambda *words: launch(*words, command=command, **variables)


@pytest.mark.needs_mounts
def test_pod_can_submit_jobs_to_its_own_namespace(
    mounted: Command, in_pod: Command, server: ApiServer
) -> None:
    """It can also query, list and delete them, all without a kubeconfig."""
    words = ("submit", "-s", "kubernetes", "utils.echo", "--msg", "hello", "--image", "i")
    submitted = mounted(*words)
    assert submitted.returncode == 0, submitted.stderr
    handle = submitted.stdout.strip()
    assert handle.startswith("kubernetes://relight/team-a:echo-")
    assert {namespace for namespace, _, _ in server.objects} == {"team-a"}
    wait_for(lambda: "SUCCEEDED" in in_pod("status", handle).stdout, "the job's end", LIMIT_S)
    assert in_pod("logs", handle).stdout == "hello\n"
    assert handle in in_pod("list", "-s", "kubernetes").stdout
    assert "namespace" not in in_pod("describe", handle).stdout
    assert in_pod("delete", handle).returncode == 0
    assert not server.objects


def test_running_inside_pod_is_detected_from_service_account(in_pod: Command) -> None:
    assert "kubernetes  yes" in in_pod("schedulers").stdout


def test_list_uses_namespace_from_config_file(
    in_pod: Command, server: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / ".relightconfig").write_text("[kubernetes]\nnamespace = other\n")
    submitted = in_pod("submit", "-s", "kubernetes", "utils.echo", "--image", "i")
    handle = submitted.stdout.strip()
    assert handle.startswith("kubernetes://relight/other:echo-")
    shutil.rmtree(tmp_path / "state")  # as in another pod
    assert handle in in_pod("list", "-s", "kubernetes").stdout


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        long("token", "", "Token file exists but empty"),
        long("token", None, "Service token file does not exist"),
        ("token", "expired", "the cluster rejects the credentials"),
        long("ca.crt", None, "Service certification file does not exist"),
        long("ca.crt", "", "Cert file exists but empty"),
        ("ca.crt", "no certificate", "invalid Kubernetes configuration"),
    ],
)
def test_invalid_service_account_gives_one_line_error(
    in_pod: Command, server: ApiServer, account: Path, file: str, text: str | None, message: str
) -> None:
    path = account / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    result = in_pod("submit", "-s", "kubernetes", "utils.echo", "--image", "i")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert message in result.stderr
    assert not server.objects


@pytest.mark.needs_mounts
def test_api_server_certificate_from_unknown_ca_is_rejected(
    mounted: Command, account: Path, tmp_path: Path, server: ApiServer
) -> None:
    other = make_certificates(tmp_path / "other")
    shutil.copy(other.ca, account / "ca.crt")
    result = mounted("submit", "-s", "kubernetes", "utils.echo", "--image", "i")
    assert result.returncode == 4
    assert "certificate verify failed" in result.stderr
    assert len(result.stderr.splitlines()) == 2
    assert not server.objects


def test_missing_cluster_address_in_pod_gives_one_line_error(in_pod: Command) -> None:
    result = in_pod("list", "-s", "kubernetes", KUBERNETES_SERVICE_HOST="")
    assert result.returncode == 2
    assert "no Kubernetes cluster is configured" in result.stderr
