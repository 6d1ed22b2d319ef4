"""Jobs on a fake Kubernetes cluster (`clusters/kubernetes.py`), with real agents."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clusters.kubernetes import ApiServer, free_port
from clusters.kubernetes.apply import kubectl_apply
from conftest import LIMIT_S, long
from netlab import Lab

from relight.base.errors import MachineError, UsageError
from relight.job.app import AppDef, AppState, Role
from relight.job.components import dist
from relight.job.handles import to_handle
from relight.schedulers.api import AppStatus, LogQuery
from relight.schedulers.kubernetes import replicas
from relight.schedulers.kubernetes import scheduler as kubernetes

pytestmark = pytest.mark.needs_kubernetes
CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED = (
    AppState[name] for name in ("CANCELLED", "FAILED", "PENDING", "RUNNING", "SUCCEEDED")
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


class Jobs:
    """The scheduler, with helpers for its jobs."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.scheduler = kubernetes.Kubernetes()
        self._count = 0

    def submit(self, app: AppDef, **cfg: Any) -> str:
        self._count += 1
        return self.scheduler.submit(self.scheduler.render(app, cfg, f"job-x{self._count}"))

    def status(self, app_id: str) -> AppStatus:
        return self.scheduler.status([app_id])[app_id]

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            logs = [path.read_text() for path in sorted(self.server.directory.glob("*.log"))]
            assert time.monotonic() < end, logs
            time.sleep(0.2)  # a query takes 10 ms of processor time

    def wait(self, app_id: str) -> AppStatus:
        self.until(lambda: self.status(app_id).state.is_over)
        return self.status(app_id)

    def lines(self, app_id: str, role: str, replica: int = 0, **query: Any) -> list[str]:
        return list(self.scheduler.logs(app_id, LogQuery(role, replica, **query)))


@pytest.fixture
def jobs(server: ApiServer) -> Iterator[Jobs]:
    jobs = Jobs(server)
    yield jobs
    jobs.scheduler.close()


def sh(text: str, **parts: Any) -> AppDef:
    return AppDef("job", [Role("main", "img", entrypoint="sh", args=["-c", text], **parts)])


def train(folder: Path, text: str, **options: Any) -> AppDef:
    """Return a job that runs a script, with an endpoint at a free port on this host."""
    path = folder / "train.py"
    path.write_text("import os, sys, time\nrank = os.environ['RANK']\n" + text)
    known = {"script": str(path), "image": "img", "rdzv_port": free_port(), "name": "train"}
    return dist.ddp(**{**known, **options})


KINDS = ("job", "jobset", "volcano", "trainjob")
every_kind = pytest.mark.parametrize("kind", KINDS)
two_kinds = pytest.mark.parametrize("kind", [*KINDS[:2], *map(long, KINDS[2:])])


def test_single_pod_job_runs_and_can_be_queried(jobs: Jobs, tmp_path: Path) -> None:
    app = train(tmp_path, "print('rank', rank, 'trains')\n", j="1x2")
    app_id = jobs.submit(app)
    assert app_id == "ns:job-x1"
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED
    (replica,) = status.replicas
    assert (replica.role, replica.replica, replica.exitcode) == ("train", 0, 0)
    lines = jobs.lines(app_id, "train")
    assert sorted(x[-13:] for x in lines if "trains" in x) == ["rank 0 trains", "rank 1 trains"]


@two_kinds
def test_pods_rendezvous_using_launcher_from_config_map(
    jobs: Jobs, tmp_path: Path, kind: str
) -> None:
    """It is preferred over the tests' own launcher."""
    text = "print('rank', rank, 'of', os.environ['WORLD_SIZE'])\n"
    app = train(tmp_path, text, j="2x1", env={"RELIGHT_LAUNCHER": "travels"})
    app_id = jobs.submit(app, kind=kind)
    assert app_id == "ns:job-x1"
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED
    found = [(each.role, each.replica, each.exitcode) for each in status.replicas]
    assert found == [("train", 0, 0), ("train", 1, 0)]
    lines = jobs.lines(app_id, "train", 0) + jobs.lines(app_id, "train", 1)
    for rank in range(2):
        assert any(f"rank {rank} of 2" in line for line in lines), lines
    assert not any("no token" in line for line in lines)


def test_dry_run_output_can_be_applied_with_kubectl(jobs: Jobs, tmp_path: Path) -> None:
    """Even without --server-side, so that tools that apply manifests this way work."""
    text = "print('rank', rank, 'of', os.environ['WORLD_SIZE'])\n"
    app = train(tmp_path, text, j="2x1", env={"RELIGHT_LAUNCHER": "travels"})
    request = jobs.scheduler.render(app, {}, "job-x1")
    assert kubectl_apply(jobs.server, request.text) == []
    assert jobs.wait(request.app_id).state is SUCCEEDED
    assert "rank 0 of 2" in "".join(jobs.lines(request.app_id, "train", 0))


def test_ranks_are_ordered_by_pod_zone(jobs: Jobs, tmp_path: Path) -> None:
    """The pods' indexes don't matter, nor does a label that pods lack."""
    jobs.server.kubelet.zones = {0: "z10", 1: "z9"}
    app = train(tmp_path, "print('rank', rank, 'trains')\n", j="2x1")
    labels = ["topology.kubernetes.io/zone", "example.com/rack"]
    app_id = jobs.submit(app, rank_order=labels)
    assert jobs.wait(app_id).state is SUCCEEDED
    for pod, zone, rank in ((0, "z10", 1), (1, "z9", 0)):
        lines = jobs.lines(app_id, "train", pod)
        assert any(f"rank {rank} trains" in line for line in lines), lines
        assert any(f"this is node {rank}, at {zone}" in line for line in lines), lines


@pytest.mark.parametrize("kind", [KINDS[0], *map(long, KINDS[1:])])
def test_program_error_ends_job_immediately(jobs: Jobs, tmp_path: Path, kind: str) -> None:
    app_id = jobs.submit(train(tmp_path, "raise ValueError('wrong data')\n", j="2x1"), kind=kind)
    status = jobs.wait(app_id)
    assert status.state is FAILED
    assert status.exitcode == 1
    assert "exit code 1" in status.message
    lines = jobs.lines(app_id, "train", 0) + jobs.lines(app_id, "train", 1)
    assert any("ValueError: wrong data" in line for line in lines)
    assert jobs.server.pods_made == 2  # none was recreated


def test_drained_pod_is_recreated_and_group_continues(jobs: Jobs, tmp_path: Path) -> None:
    """Neither the Job nor --max-restarts counts the drain as a failure."""
    text = (
        "print('begin', rank, os.environ['WORLD_SIZE'], flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.05)\n"
    )
    conf = "last_call_timeout=1,join_timeout=25"
    app_id = jobs.submit(train(tmp_path, text, j="1:2x1", rdzv_conf=conf))
    jobs.until(lambda: any("2" in x for x in jobs.lines(app_id, "train", 0) if "begin" in x))
    jobs.server.evict(1)
    jobs.until(lambda: jobs.server.pods_made == 3)
    jobs.until(lambda: any("begin" in x for x in jobs.lines(app_id, "train", 1)))
    (tmp_path / "go").touch()
    assert jobs.wait(app_id).state is SUCCEEDED


@pytest.mark.xfail(strict=True, reason="counts pods, but a drained pod is deleted from the API")
def test_pod_drain_counts_as_restart(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("exec sleep 1000"))
    jobs.until(lambda: jobs.status(app_id).state is RUNNING)
    jobs.server.evict(0)
    jobs.until(lambda: jobs.server.pods_made == 2 and jobs.status(app_id).state is RUNNING)
    assert jobs.status(app_id).restarts == 1


def test_elastic_job_starts_without_pending_pods_and_grows_later(
    jobs: Jobs, tmp_path: Path
) -> None:
    text = (
        "print('begin', rank, 'of', os.environ['WORLD_SIZE'], flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.05)\n"
    )
    jobs.server.unschedulable = {1}
    conf = "last_call_timeout=1,join_timeout=25"
    app_id = jobs.submit(train(tmp_path, text, j="1:2x1", rdzv_conf=conf))
    jobs.until(lambda: any("begin 0 of 1" in x for x in jobs.lines(app_id, "train", 0)))
    status = jobs.status(app_id)
    assert status.state is RUNNING
    assert status.replicas[1].state is PENDING
    jobs.server.find_nodes()
    jobs.until(lambda: any("begin 1 of 2" in x for x in jobs.lines(app_id, "train", 1)))
    (tmp_path / "go").touch()
    assert jobs.wait(app_id).state is SUCCEEDED


def unfit(folder: Path, condition: str) -> dict[str, str]:
    """Return the variable for a health check that fails under a shell condition."""
    path = folder / "check.sh"
    path.write_text(f"#!/bin/sh\nif {condition}; then echo no GPU; exit 1; fi\n")
    path.chmod(0o755)
    return {"RELIGHT_HEALTH_CHECK": str(path)}


def failed_pods(jobs: Jobs, index: int) -> list[Any]:
    return [
        pod
        for pod in jobs.server.of("pods")
        if pod["metadata"]["labels"][replicas.INDEX] == str(index)
        and pod["status"]["phase"] == "Failed"
    ]


def test_elastic_job_succeeds_without_pod_that_keeps_failing_its_health_check(
    jobs: Jobs, tmp_path: Path
) -> None:
    """The Job controller fails a Job if each index has succeeded or failed, whatever the success
    policy, so an index must not fail while the others train.
    """
    begun, go = tmp_path / "begun", tmp_path / "go"
    text = (
        f"open({str(begun)!r}, 'a').close()\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
    )
    env = unfit(tmp_path, "[ $RELIGHT_REPLICA_ID = 2 ]")
    conf = "last_call_timeout=0.1,join_timeout=25"
    app = train(tmp_path, text, j="2:3x1", rdzv_conf=conf, env=env, max_retries=1)
    (role,) = app.roles
    waits = f"[ $RELIGHT_REPLICA_ID != 2 ] || until [ -e {begun} ]; do sleep 0.05; done\n"
    app = replace(app, roles=[replace(role, args=["-c", waits + role.args[1]])])
    app_id = jobs.submit(app)
    jobs.until(lambda: len(failed_pods(jobs, 2)) > role.max_retries)
    go.touch()
    assert jobs.wait(app_id).state is SUCCEEDED


@pytest.mark.long
def test_elastic_job_fails_if_all_pods_fail_their_health_checks(jobs: Jobs, tmp_path: Path) -> None:
    app = train(tmp_path, "", j="1:2x1", env=unfit(tmp_path, "true"), max_retries=1)
    assert jobs.wait(jobs.submit(app)).state is FAILED


@pytest.mark.needs_hosts
def test_job_survives_loss_of_pod_0(jobs: Jobs, tmp_path: Path) -> None:
    """Pods are on separate hosts, and the first one, the coordinator, is lost along
    with its node.
    """
    text = (
        "print('begin', rank, 'of', os.environ['WORLD_SIZE'], flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.05)\n"
    )
    app = train(tmp_path, text, j="2:3x1", rdzv_conf="last_call_timeout=2,join_timeout=25")
    names = [f"job-x1-{number}.job-x1" for number in range(3)]
    with Lab(hosts=names, hostnames={name: name.partition(".")[0] for name in names}) as lab:
        jobs.server.lab = lab
        app_id = jobs.submit(app)

        def begun(replica: int, size: int) -> bool:
            lines = jobs.lines(app_id, "train", replica)
            return any("begin" in x and f"of {size}" in x for x in lines)

        jobs.until(lambda: all(begun(replica, 3) for replica in range(3)))
        jobs.server.lose(0)
        jobs.until(lambda: begun(1, 2) and begun(2, 2))
        assert "Unschedulable" in jobs.status(app_id).replicas[0].error
        (tmp_path / "go").touch()
        assert jobs.wait(app_id).state is SUCCEEDED


def test_logs_can_be_followed_until_job_ends(jobs: Jobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    app_id = jobs.submit(sh(f"echo first; until [ -e {go} ]; do sleep 0.1; done; printf last"))
    lines = jobs.scheduler.logs(app_id, LogQuery("main", 0, follow=True))
    assert next(lines) == "first"
    go.touch()
    assert list(lines) == ["last"]


@every_kind
def test_logs_can_be_requested_by_original_role_name(jobs: Jobs, kind: str) -> None:
    """The name isn't necessarily a valid label."""
    app = AppDef("job", [Role("My Role", "img", entrypoint="echo", args=["hello"])])
    app_id = jobs.submit(app, kind=kind)
    assert jobs.wait(app_id).state is SUCCEEDED
    assert jobs.lines(app_id, "My Role") == ["hello"]


def test_following_logs_survives_lost_connections(jobs: Jobs, tmp_path: Path) -> None:
    """No line is lost or repeated."""
    jobs.server.drops = 2
    go = tmp_path / "go"
    app_id = jobs.submit(sh(f"seq 5; until [ -e {go} ]; do sleep 0.1; done; seq 6 9"))
    lines = jobs.scheduler.logs(app_id, LogQuery("main", 0, follow=True))
    first = [next(lines) for _ in range(5)]
    go.touch()
    assert [*first, *lines] == [str(number) for number in range(1, 10)]
    assert not jobs.server.drops


@every_kind
def test_cancel_stops_pods_but_keeps_job_object(jobs: Jobs, kind: str) -> None:
    app_id = jobs.submit(sh("exec sleep 1000"), kind=kind)
    jobs.until(lambda: jobs.status(app_id).state is RUNNING)
    jobs.scheduler.cancel(app_id)
    jobs.until(lambda: jobs.status(app_id).state is CANCELLED)
    jobs.until(lambda: all(pod["status"]["phase"] != "Running" for pod in jobs.server.of("pods")))
    jobs.scheduler.cancel(app_id)


def test_volcano_restarts_whole_job_until_retry_limit_is_reached(
    jobs: Jobs, tmp_path: Path
) -> None:
    app = sh(f"echo x >> {tmp_path}/tries; exit 3", max_retries=2, num_replicas=2)
    status = jobs.wait(jobs.submit(app, kind="volcano"))
    assert status.state is FAILED
    assert "exit code 3" in status.message
    assert len((tmp_path / "tries").read_text().split()) >= 3


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_stopped_replica_is_not_reported_as_cause_of_failure(jobs: Jobs, kind: str) -> None:
    """Replica 0 exits with 143 because replica 1 failed."""
    app = sh("[ ${replica_id} = 0 ] && exec sleep 1000; exit 3", num_replicas=2)
    status = jobs.wait(jobs.submit(app, kind=kind))
    assert status.message == "main/1: exit code 3"


@pytest.mark.parametrize("kind", ["job", long("jobset")])
def test_retried_pod_can_read_its_restart_count(jobs: Jobs, tmp_path: Path, kind: str) -> None:
    text = f'echo $RELIGHT_REQUEUES >> {tmp_path}/tries; [ "$RELIGHT_REQUEUES" = 2 ]'
    app = sh(text, max_retries=2)
    assert jobs.wait(jobs.submit(app, kind=kind)).state is SUCCEEDED
    assert (tmp_path / "tries").read_text().split() == ["0", "1", "2"]


def test_preempted_agent_is_restarted_without_using_up_a_retry(jobs: Jobs, tmp_path: Path) -> None:
    app = sh(f"[ -e {tmp_path}/saved ] || {{ touch {tmp_path}/saved; exit 75; }}")
    assert jobs.wait(jobs.submit(app)).state is SUCCEEDED


def test_jobs_are_found_when_optional_crds_are_not_installed(jobs: Jobs) -> None:
    jobs.server.installed -= {"jobsets", "jobs.volcano", "trainjobs"}
    app_id = jobs.submit(sh("true"))
    assert jobs.wait(app_id).state is SUCCEEDED
    assert [each.app_id for each in jobs.scheduler.list()] == [app_id]
    with pytest.raises(UsageError, match="could not find the requested resource"):
        jobs.submit(sh("true"), kind="jobset")
    jobs.scheduler.delete(app_id)
    assert not jobs.server.objects


def test_all_objects_are_validated_before_any_is_created(jobs: Jobs) -> None:
    """As in TorchX, `-cfg validate_spec=false` skips the validation."""
    jobs.wait(jobs.submit(sh("true")))
    assert jobs.server.dry_runs == ["services", "secrets", "jobs"]
    jobs.wait(jobs.submit(sh("true"), validate_spec=False))
    assert len(jobs.server.dry_runs) == 3


def test_job_is_found_in_kubeconfig_context_used_to_submit_it(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current context may have changed since. On EKS, names contain colons and slashes."""
    arn = "arn:aws:eks:eu:1:cluster/a@b"
    config = json.loads(jobs.server.kubeconfig.read_text())
    config["contexts"][0]["name"] = arn
    config["current-context"] = arn
    jobs.server.kubeconfig.write_text(json.dumps(config))
    app_id = jobs.submit(sh("true"), context=arn)
    config["current-context"] = "another"
    jobs.server.kubeconfig.write_text(json.dumps(config))
    assert app_id == "arn:aws:eks:eu:1:cluster%2Fa@b@ns:job-x1"
    handle = to_handle(f"kubernetes://relight/{app_id}/main/0")
    assert (handle.app_id, handle.role) == (app_id, "main")
    other = kubernetes.Kubernetes()
    jobs.until(lambda: other.status([app_id])[app_id].state is SUCCEEDED)
    other.close()
    with pytest.raises(UsageError, match="no context arn:aws:eks:eu:1:cluster/a@c") as caught:
        jobs.submit(sh("true"), context="arn:aws:eks:eu:1:cluster/a@c")
    assert arn in caught.value.hint


@two_kinds
def test_delete_leaves_nothing_behind(jobs: Jobs, kind: str) -> None:
    """Nothing is left either if the pods' controller is deleted with another tool."""
    first = jobs.submit(sh("true relight run"), kind=kind)
    (native,) = jobs.scheduler.native(first)
    assert native["metadata"]["name"] == first.partition(":")[2]
    app_id = jobs.submit(sh("true relight run"), kind=kind)
    kinds = {each["kind"] for each in jobs.server.objects.values()}
    assert {"Job", "ConfigMap", "Secret", "Pod"} <= kinds
    jobs.wait(first)
    jobs.scheduler.delete(app_id)
    assert app_id not in jobs.scheduler.status([app_id])
    plural = {"job": "jobs", "volcano": "jobs.volcano"}.get(kind, f"{kind}s")
    with jobs.server._lock:
        jobs.server._delete(("ns", plural, "job-x1"))
    assert {plural for _, plural, _ in jobs.server.objects} == {"configmaps"}  # for other jobs

    for verb in (jobs.scheduler.delete, jobs.scheduler.native):
        with pytest.raises(UsageError, match="no job ns:job-x2 on this cluster"):
            verb(app_id)


def test_config_map_created_by_someone_else_is_not_used_as_launcher(jobs: Jobs) -> None:
    """Its name is a hash of its content, but anyone could take that name first."""
    jobs.submit(sh("true relight run"))
    jobs.server.of("configmaps")[-1]["binaryData"] = {"relight": "AAAA"}
    with pytest.raises(UsageError, match="does not contain the launcher of this relight version"):
        jobs.submit(sh("true relight run"))
    assert len(jobs.server.of("jobs")) == 1


@pytest.mark.parametrize("kind", ["services", "secrets", "jobs"])
def test_partially_failed_submit_is_rolled_back(jobs: Jobs, kind: str) -> None:
    """The error names the missing permission."""
    group = "batch" if kind == "jobs" else ""
    said = (
        f'{kind} is forbidden: User "u" cannot create resource "{kind}" in API group "{group}" in '
        'the namespace "ns"'
    )
    jobs.server.refuse = lambda method, plural, _: (
        (403, said) if (method, plural) == ("POST", kind) else None
    )
    with pytest.raises(UsageError, match=f"does not allow this user to create {kind}") as caught:
        jobs.submit(sh("true"))
    assert f"kubectl auth can-i create {kind}" in caught.value.hint
    assert not jobs.server.objects


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (401, "Unauthorized", "rejects the credentials"),
        (422, "Job is invalid: spec.x: wrong", "Kubernetes rejected the request: Job is invalid"),
        (500, "etcd is slow", "Kubernetes: 500 etcd is slow"),
    ],
)
def test_server_error_is_reported_on_one_line(
    jobs: Jobs, code: int, said: str, expected: str
) -> None:
    jobs.server.refuse = lambda *_: (code, said)
    with pytest.raises((UsageError, MachineError), match=expected) as caught:
        jobs.submit(sh("true"))
    assert "\n" not in caught.value.message


def test_throttled_request_is_retried(jobs: Jobs) -> None:
    """The server determines the delay. Even create requests are retried."""
    busy = [(429, "too many requests")] * 2
    jobs.server.refuse = lambda *_: busy.pop() if busy else None
    assert jobs.wait(jobs.submit(sh("true"))).state is SUCCEEDED
    assert not busy


def test_existing_job_name_is_rejected(jobs: Jobs) -> None:
    request = jobs.scheduler.render(sh("true"), {}, "same-x1")
    jobs.scheduler.submit(request)
    again = jobs.scheduler.render(sh("true"), {}, "same-x1")
    with pytest.raises(UsageError, match="already exists"):
        jobs.scheduler.submit(again)
    assert jobs.wait("ns:same-x1").state is SUCCEEDED


def test_status_reports_why_pod_is_pending(jobs: Jobs) -> None:
    jobs.server.unschedulable = {1}
    app_id = jobs.submit(sh("exec sleep 1000", num_replicas=2))
    waiting = jobs.status(app_id).replicas[1]
    assert waiting.state is PENDING
    assert "Unschedulable: 0/1 nodes are available" in waiting.error
    jobs.server.unschedulable = set()
    said = 'Back-off pulling image "img"'
    jobs.server.waiting = {"reason": "ImagePullBackOff", "message": said}
    app_id = jobs.submit(sh("true"))
    status = jobs.status(app_id)
    assert status.state is PENDING
    assert status.message == f"main/0: ImagePullBackOff: {said}"


def test_logs_can_be_limited_to_a_time_range(jobs: Jobs) -> None:
    app_id = jobs.submit(
        sh("echo 2026-01-01T00:00:00.123456789Z old; echo $(date -u +%FT%T.%NZ) new")
    )
    jobs.wait(app_id)
    since = datetime.now(UTC) - timedelta(minutes=5)
    assert jobs.lines(app_id, "main", since=since) == ["new"]
    assert jobs.lines(app_id, "main", until=since) == ["old"]


def test_jobs_are_listed_newest_first(jobs: Jobs) -> None:
    first = jobs.submit(sh("true"))
    jobs.wait(first)
    jobs.server.objects[("ns", "jobs", "job-x1")]["metadata"]["creationTimestamp"] = (
        "2026-01-01T00:00:00Z"
    )
    second = jobs.submit(sh("exec sleep 1000"))
    jobs.until(lambda: jobs.status(second).state is RUNNING)
    listed = jobs.scheduler.list()
    assert [each.app_id for each in listed] == [second, first]
    assert [each.state for each in listed] == [RUNNING, SUCCEEDED]
    assert listed[0].name == "job"


def test_error_names_unknown_job_or_replica(jobs: Jobs) -> None:
    assert jobs.scheduler.status(["ns:nothing"]) == {}
    with pytest.raises(UsageError, match="no job ns:nothing on this cluster"):
        jobs.scheduler.cancel("ns:nothing")
    with pytest.raises(UsageError, match="not a Kubernetes job id"):
        jobs.scheduler.status(["nothing"])
    app_id = jobs.submit(sh("true"))
    with pytest.raises(UsageError, match="has no replica main/3") as caught:
        jobs.lines(app_id, "main", 3)
    assert caught.value.hint == "it has main/0 to 0"


def test_unreachable_server_gives_one_line_error(jobs: Jobs) -> None:
    jobs.server.__exit__(None, None, None)
    with pytest.raises(MachineError, match="no response from the API server") as caught:
        jobs.scheduler.status(["ns:x"])
    assert "\n" not in caught.value.message


def test_no_request_is_sent_without_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    scheduler = kubernetes.Kubernetes()
    assert scheduler.affinity() == 0
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
        scheduler.status(["ns:x"])


def _config(
    server: object = "http://127.0.0.1:1", context: object = "x", **user: object
) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": context,
    }


def _asks(program: str) -> dict[str, Any]:
    """Return a kubeconfig user whose credentials are printed by a program, as on most clouds."""
    version = "client.authentication.k8s.io/v1"
    return {"apiVersion": version, "command": program, "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (_config("garbage"), "the server is garbage: expected https://HOST:PORT"),
        (_config("http://127.0.0.1:99999"), "Port out of range"),
        (_config(context="y"), "Expected object with name y"),
        (_config(exec=_asks("no-such-program")), "No such file or directory: 'no-such-program'"),
        (_config(exec=_asks("false")), "exec: process returned 1"),
        (_config(exec=_asks("true")), "exec: failed to decode process output"),
        (["a"], "invalid Kubernetes configuration"),
        ({"contexts": 3}, "contexts is not a list"),
        ({"contexts": [3]}, "contexts is not a list"),
    ],
)
def test_invalid_kubeconfig_gives_one_line_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    config: Any,
    said: str,
) -> None:
    """No request is sent, and nothing is logged."""
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UsageError) as caught:
        kubernetes.Kubernetes().list()
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert capfd.readouterr().err == ""
