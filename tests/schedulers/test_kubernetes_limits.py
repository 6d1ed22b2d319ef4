"""Facts that a pod can find out: its replica's earlier starts, and its deadline."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import ApiServer, until

from relight import worker
from relight.base.errors import UsageError
from relight.job.app import AppDef, AppState, Role
from relight.schedulers.api import AppStatus
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def submit(command: str, max_retries: int = 0, **cfg: object) -> None:
    role = Role("main", "img", entrypoint="sh", args=["-c", command], max_retries=max_retries)
    scheduler = kubernetes.Kubernetes()
    scheduler.submit(scheduler.render(AppDef("job", [role]), cfg, "job-x1"))


def status() -> AppStatus:
    return kubernetes.Kubernetes().status(["ns:job-x1"])["ns:job-x1"]


def ended() -> AppStatus:
    with until(lambda: status().state.is_over):
        return status()


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pod_can_read_its_restart_count(
    server: ApiServer, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemptions count too, although Kubernetes counts them separately from failures and without
    retries.
    """
    tries = tmp_path / "tries"
    submit(
        f'echo "$RELIGHT_REQUEUES $RELIGHT_PREEMPTIONS" >> {tries}\n'
        f"case $(wc -l < {tries}) in 1) exit 75;; 2) exit 143;; esac",
        kind=kind,
    )
    assert ended().state is AppState.SUCCEEDED
    told = tries.read_text().splitlines()
    assert told == ["0 ", "0 1", "1 1"]
    monkeypatch.setenv("RELIGHT_REQUEUES", "1")
    monkeypatch.setenv("RELIGHT_PREEMPTIONS", "1")
    assert worker.membership().requeues == 2


def test_volcano_pod_can_read_its_restart_count(server: ApiServer, tmp_path: Path) -> None:
    command = f'echo $RELIGHT_REQUEUES >> {tmp_path}/tries; [ "$RELIGHT_REQUEUES" = 1 ]'
    submit(command, max_retries=2, kind="volcano")
    assert ended().state is AppState.SUCCEEDED
    assert (tmp_path / "tries").read_text().split() == ["0", "1"]


def test_pod_can_read_its_deadline(server: ApiServer, tmp_path: Path) -> None:
    begin = time.time()
    submit(f"echo $RELIGHT_END_TIME > {tmp_path}/end", timeout=5)
    with until(lambda: (tmp_path / "end").exists() and (tmp_path / "end").read_text()):
        end = int((tmp_path / "end").read_text())
    assert begin + 299 <= end <= time.time() + 300


def test_recreated_pod_has_no_deadline_variable(server: ApiServer, tmp_path: Path) -> None:
    command = (
        f'echo "end: $RELIGHT_END_TIME" >> {tmp_path}/ends; [ $RELIGHT_PREEMPTIONS ] || exit 75'
    )
    submit(command, timeout=5)
    assert ended().state is AppState.SUCCEEDED
    first, second = (tmp_path / "ends").read_text().splitlines()
    assert first > "end: 1"
    assert second == "end: "


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"timeout": 0}, "-cfg timeout=0: must be at least one minute"),
        ({"timeout": 5, "kind": "trainjob"}, "-cfg timeout is not supported for TrainJob"),
        ({"ttl": -2}, "-cfg ttl=-2: expected seconds, or -1"),
    ],
)
def test_unenforceable_time_limit_is_rejected(cfg: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        submit("true", namespace="ns", **cfg)


@pytest.mark.parametrize(
    ("cfg", "hint"),
    [
        ({"namespace": "Team_A"}, "lower case letters"),
        ({"queue": "gpu queue"}, "the name of a queue"),
        ({"service_account": "Trainer"}, "the name of a service account"),
        ({"priority_class": "a/b"}, "the name of a priority class"),
        ({"topology": "a/b/c"}, "a label such as topology.kubernetes.io/zone"),
        ({"rank_order": ["zone", "a']b"]}, "a label such as topology.kubernetes.io/zone"),
        ({"shm_size": "8GB"}, "a size such as 8Gi"),
        ({"user": -1}, "the number of a user"),
        ({"fs_group": -1}, "the number of a group"),
        ({"scheduler": "my scheduler"}, "the name of a scheduler"),
        ({"exclude": ["Node 1"]}, "node names"),
    ],
)
def test_value_invalid_in_kubernetes_is_rejected_without_contacting_server(
    cfg: dict[str, object], hint: str
) -> None:
    with pytest.raises(UsageError, match="not valid in Kubernetes") as caught:
        submit("true", **{"namespace": "ns", **cfg})
    assert hint in caught.value.hint
