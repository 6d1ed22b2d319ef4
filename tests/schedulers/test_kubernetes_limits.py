"""What a pod is told: how often its replica was started before, and when its time is over."""

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
    scheduler = kubernetes.make()
    scheduler.submit(scheduler.render(AppDef("job", [role]), cfg, "job-x1"))


def status() -> AppStatus:
    return kubernetes.make().status(["ns:job-x1"])["ns:job-x1"]


def ended() -> AppStatus:
    with until(lambda: status().state.is_over):
        return status()


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pod_knows_its_restart_count(
    server: ApiServer, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemptions count too, though Kubernetes counts them apart from failures, and without
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


def test_volcano_pod_knows_its_restart_count(server: ApiServer, tmp_path: Path) -> None:
    command = f'echo $RELIGHT_REQUEUES >> {tmp_path}/tries; [ "$RELIGHT_REQUEUES" = 1 ]'
    submit(command, max_retries=2, kind="volcano")
    assert ended().state is AppState.SUCCEEDED
    assert (tmp_path / "tries").read_text().split() == ["0", "1"]


@pytest.mark.parametrize("max_retries", [0, 2])
def test_pod_knows_its_deadline_and_is_not_retried_after_it(
    server: ApiServer, tmp_path: Path, max_retries: int
) -> None:
    begin = time.time()
    command = f"trap 'exit 143' TERM; echo $RELIGHT_END_TIME > {tmp_path}/end; sleep 1000 & wait"
    submit(command, max_retries, timeout=5)
    (pod,) = server.of("pods")
    assert pod["spec"]["activeDeadlineSeconds"] == 300
    with until(lambda: (tmp_path / "end").exists() and (tmp_path / "end").read_text()):
        end = int((tmp_path / "end").read_text())
    assert begin + 299 <= end <= time.time() + 300
    server.time_out(0)
    status = ended()
    assert status.state is AppState.FAILED
    assert status.exitcode == 143
    assert status.message.startswith("main/0: DeadlineExceeded: Pod was active on the node longer")
    assert len(server.of("pods")) == 1


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"timeout": 0}, "-cfg timeout=0: at least one minute"),
        ({"timeout": 5, "kind": "trainjob"}, "-cfg timeout: a TrainJob can't say it"),
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
        ({"shm_size": "8GB"}, "a size such as 8Gi"),
        ({"user": -1}, "the number of a user"),
    ],
)
def test_value_invalid_for_kubernetes_is_rejected_offline(
    cfg: dict[str, object], hint: str
) -> None:
    with pytest.raises(UsageError, match="is not what Kubernetes takes") as caught:
        submit("true", **{"namespace": "ns", **cfg})
    assert hint in caught.value.hint
