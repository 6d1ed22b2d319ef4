"""Interrupted Kubernetes submissions and failing state directories, and the objects left behind."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import ApiServer
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment, long

from schedulers import small_disk

pytestmark = pytest.mark.needs_kubernetes
ECHO = ("submit", "-s", "kubernetes", "utils.echo", "--image", "i")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        yield server


@pytest.fixture
def variables(server: ApiServer, tmp_path: Path) -> dict[str, str]:
    return {
        "KUBECONFIG": str(server.kubeconfig),
        "HOME": str(tmp_path),
        "RELIGHT_STATE_DIR": str(tmp_path / "state"),
    }


def records(variables: dict[str, str]) -> list[str]:
    folder = Path(variables["RELIGHT_STATE_DIR"]) / "jobs"
    return os.listdir(folder) if folder.exists() else []


def stopped_half_way(
    server: ApiServer, variables: dict[str, str], number: signal.Signals
) -> "subprocess.CompletedProcess[str]":
    """Submit a job, and send a signal while the server creates the second object."""
    reached, may_go_on = threading.Event(), threading.Event()

    def wait(method: str, plural: str, _: object) -> None:
        if (method, plural) == ("POST", "secrets") and server.of("services"):
            reached.set()
            may_go_on.wait(LIMIT_S)

    server.refuse = wait  # type: ignore[assignment]
    with subprocess.Popen(
        [*RELIGHT, *ECHO], env=clean_environment(**variables), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert reached.wait(LIMIT_S)
        process.send_signal(number)
        threading.Timer(0.5, may_go_on.set).start()
        out, err = process.communicate(timeout=LIMIT_S)
    server.refuse = lambda *_: None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), long(signal.SIGTERM, 143)])
def test_interrupted_submit_leaves_nothing_behind(
    server: ApiServer, variables: dict[str, str], number: signal.Signals, code: int
) -> None:
    result = stopped_half_way(server, variables, number)
    assert (result.returncode, result.stdout) == (code, "")
    assert "Traceback" not in result.stderr
    assert not server.objects
    assert records(variables) == []


def test_objects_left_by_killed_submit_can_be_deleted(
    server: ApiServer, variables: dict[str, str], in_process: Launch
) -> None:
    """The record is written before the first object, and says so."""
    assert stopped_half_way(server, variables, signal.SIGKILL).returncode == -signal.SIGKILL
    (name,) = records(variables)
    assert server.objects
    assert name in in_process("list", **variables).stdout
    assert "relight submit was interrupted" in in_process("status", name, **variables).stdout
    result = in_process("delete", name, **variables)
    assert result.returncode == 0, result.stderr
    assert not server.objects
    assert records(variables) == []


@pytest.mark.needs_mounts
@pytest.mark.parametrize("how", small_disk.KINDS)
def test_full_state_directory_is_detected_before_objects_are_created(
    server: ApiServer, variables: dict[str, str], launch: Launch, tmp_path: Path, how: str
) -> None:
    result = small_disk.submit(launch, ECHO, variables, tmp_path, how)
    assert (result.returncode, result.stdout) == (4, ""), result.stderr
    assert result.stderr.startswith("relight: error: ")
    assert "Traceback" not in result.stderr
    assert not server.objects


def test_simultaneous_submits_create_separate_jobs(
    server: ApiServer, variables: dict[str, str], launch: Launch
) -> None:
    found: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(launch(*ECHO, **variables))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.returncode for result in found] == [0] * 2, found
    assert len({result.stdout for result in found}) == 2
    assert len(server.of("jobs")) == len(records(variables)) == 2


def test_log_request_for_replica_fetches_only_its_own_pod(
    server: ApiServer, variables: dict[str, str], in_process: Launch
) -> None:
    """Following hundreds of replicas must not fetch all pods for each replica."""
    words = ("--num_replicas", "3", "--msg", "hello")
    handle = in_process(*ECHO, *words, **variables).stdout.strip()
    assert in_process("wait", handle, **variables).returncode == 0
    asked: list[str] = []
    server.selectors = asked
    result = in_process("logs", handle, **variables)
    assert sorted(result.stdout.split("\n")[:3]) == [f"echo/{n} hello" for n in range(3)]
    of_pods = [each for each in asked if "relight/role" in each]
    assert len(of_pods) == 3
    assert all("job-completion-index=" in each for each in of_pods)


def test_error_lists_objects_left_behind_if_server_dies_during_submit(
    server: ApiServer, variables: dict[str, str], in_process: Launch
) -> None:
    """The objects can't be removed without the server, so the message names them."""
    dies = threading.Event()

    def die(method: str, plural: str, _: object) -> None:
        if (method, plural) == ("POST", "secrets") and server.of("services"):
            dies.set()
        if dies.is_set():
            raise ConnectionError("the server is gone")

    server.refuse = die  # type: ignore[assignment]
    result = in_process(*ECHO, **variables)
    assert (result.returncode, result.stdout) == (4, "")
    (service,) = server.of("services")
    assert service["metadata"]["name"] in result.stderr, json.dumps(service["metadata"])
    assert "kubectl delete" in result.stderr
