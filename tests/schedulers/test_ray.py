"""Jobs on a real multi-node Ray cluster on this machine (`clusters/ray.py`), with agents."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.ray import RayCluster, of_variable
from conftest import LIMIT_S

from relight.base.errors import UsageError
from relight.job.app import AppDef, AppState, Resource, Role
from relight.job.components import dist
from relight.schedulers.api import AppStatus, LogQuery
from relight.schedulers.ray import scheduler as ray

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.needs_ray,
    pytest.mark.timeout(6 * LIMIT_S),
]
CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED = (
    AppState[name] for name in ("CANCELLED", "FAILED", "PENDING", "RUNNING", "SUCCEEDED")
)
ONE_CPU = Resource(cpu=1, gpu=0, memMB=64)
CONF = "last_call_timeout=1,join_timeout=60"
TRAINS = """
import os, sys, time
print("begin", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Start two nodes with one CPU each. The second one also has a `spot`."""
    cluster = RayCluster()
    try:
        cluster.start()
        cluster.add(3, resources='{"spot": 1}')
        yield cluster
    finally:
        cluster.close()


class Jobs:
    """The scheduler, with helpers for its jobs."""

    def __init__(self, cluster: RayCluster, name: str) -> None:
        self.cluster = cluster
        self.scheduler = ray.Ray()
        self._name = name
        self._made: list[str] = []

    def submit(self, app: AppDef, **cfg: Any) -> str:
        cfg = {"dashboard_address": self.cluster.dashboard, "strategy": "STRICT_SPREAD", **cfg}
        request = self.scheduler.render(app, cfg, f"{self._name}-{len(self._made)}")
        self._made.append(self.scheduler.submit(request))
        return self._made[-1]

    def status(self, app_id: str) -> AppStatus:
        return self.scheduler.status([app_id])[app_id]

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, "\n".join(self._said())
            time.sleep(0.1)

    def _said(self) -> list[str]:
        """Return the output of drivers and replicas, for a failed test's message."""
        logs = (self.cluster.directory / "2" / "session_latest" / "logs").resolve()
        return [
            text
            for app_id in self._made
            for text in [
                str(self.status(app_id)),
                (logs / f"job-driver-{app_id.rpartition(':')[2]}.log").read_text(),
            ]
        ]

    def wait(self, app_id: str) -> AppStatus:
        self.until(lambda: self.status(app_id).state.is_over)
        return self.status(app_id)

    def lines(self, app_id: str, role: str, replica: int = 0, **query: Any) -> list[str]:
        return list(self.scheduler.logs(app_id, LogQuery(role, replica, **query)))

    def have_said(self, app_id: str, text: str, replicas: int) -> bool:
        return any(text in line for n in range(replicas) for line in self.lines(app_id, "train", n))

    def delete_all(self) -> None:
        for app_id in self._made:
            if app_id in self.scheduler.status([app_id]):
                self.scheduler.delete(app_id)


@pytest.fixture
def jobs(cluster: RayCluster, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    cluster.restore(3)
    jobs = Jobs(cluster, request.node.name)
    yield jobs
    jobs.delete_all()


def sh(text: str, **parts: Any) -> AppDef:
    parts = {"resource": ONE_CPU, **parts}
    return AppDef("job", [Role("main", "", entrypoint="sh", args=["-c", text], **parts)])


def train(*words: str, **options: Any) -> AppDef:
    known = {"script": "train.py", "name": "train", "cpu": 1, "memMB": 64, "rdzv_conf": CONF}
    return dist.ddp(*words, **{**known, **options})


def workspace(folder: Path, text: str) -> str:
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(text)
    return str(folder / "work")


def test_two_replicas_rendezvous_using_uploaded_launcher_and_workspace(
    jobs: Jobs, tmp_path: Path
) -> None:
    work = workspace(tmp_path, "import os, data\nprint(os.environ['RANK'], 'has', data.TEXT)\n")
    (tmp_path / "data.py").write_text("TEXT = 'data'\n")
    (tmp_path / "work" / "data.py").symlink_to(tmp_path / "data.py")
    app = train(j="2x2", env={"RELIGHT_LAUNCHER": "travels"})
    app_id = jobs.submit(app, workspace=work)
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED, status
    assert [(x.role, x.replica, x.exitcode) for x in status.replicas] == [
        ("train", 0, 0),
        ("train", 1, 0),
    ]
    assert {x.host for x in status.replicas} == {"127.0.0.2", "127.0.0.3"}
    lines = [jobs.lines(app_id, "train", number) for number in (0, 1)]
    for rank in range(4):
        assert any(f"{rank} has data" in line for line in lines[0] + lines[1]), lines
    assert sum("has data" in line for line in lines[0]) == 2
    assert not any("no token" in line for line in lines[0] + lines[1])


def test_program_error_ends_job_immediately(jobs: Jobs, tmp_path: Path) -> None:
    """The job gets the program's exit code."""
    failing = "import os, sys, time\nsys.exit(17) if os.environ['RANK'] == '1' else time.sleep(900)"
    app_id = jobs.submit(train(j="2x1"), workspace=workspace(tmp_path, failing))
    status = jobs.wait(app_id)
    assert status.state is FAILED
    assert status.exitcode == 17
    assert "exit code 17" in status.message
    assert status.restarts == 0


def test_elastic_job_grows_and_survives_loss_of_first_node(
    jobs: Jobs, cluster: RayCluster, tmp_path: Path
) -> None:
    """Each node has one `spot`, except for the head with the driver. Replacing a lost node is
    neither a failure nor a retry.
    """
    go = tmp_path / "go"
    work = workspace(tmp_path, TRAINS)
    app_id = jobs.submit(train(str(go), j="1:2x1"), workspace=work, resources={"spot": "1"})
    jobs.until(lambda: jobs.have_said(app_id, "begin 0 of 1", 1))
    assert jobs.status(app_id).state is RUNNING
    cluster.add(4, resources='{"spot": 1}')
    jobs.until(lambda: jobs.have_said(app_id, "begin 1 of 2", 2))
    hosts = {x.host for x in jobs.status(app_id).replicas}
    assert hosts == {"127.0.0.3", "127.0.0.4"}
    cluster.kill(3)
    jobs.until(lambda: any("begin 0 of 1" in x for x in jobs.lines(app_id, "train", 1)))
    jobs.until(lambda: "lost" in jobs.status(app_id).replicas[0].error)
    assert jobs.status(app_id).state is RUNNING
    cluster.add(3, resources='{"spot": 1}')
    jobs.until(lambda: sum("of 2" in x for x in jobs.lines(app_id, "train", 1)) == 2)
    go.touch()
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED
    assert status.restarts == 1


def test_losing_coordinator_process_does_not_disturb_workers(jobs: Jobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    app_id = jobs.submit(train(str(go), j="2x1"), workspace=workspace(tmp_path, TRAINS))
    jobs.until(lambda: jobs.have_said(app_id, "begin 1 of 2", 2))
    before = _coordinators(jobs.cluster)
    os.kill(before[-1], signal.SIGKILL)
    jobs.until(lambda: (found := _coordinators(jobs.cluster)) and found != before)
    go.touch()
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED
    assert status.restarts == 0
    begun = [line for n in (0, 1) for line in jobs.lines(app_id, "train", n) if "begin" in line]
    assert len(begun) == 2
    jobs.until(lambda: not _coordinators(jobs.cluster))


def _coordinators(cluster: RayCluster) -> list[int]:
    """Return the coordinator processes on the head node."""
    return [
        pid
        for pid in of_variable(cluster.mark(2))
        if b"\0coordinator\0--bind\0" in _command_line(pid)
    ]


def _command_line(pid: int) -> bytes:
    """Return a process's command line, or an empty one if it has exited."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_replicas_are_placed_on_different_nodes(jobs: Jobs) -> None:
    """Even if one node has room for several replicas, the surplus waits."""
    resource = Resource(cpu=0, gpu=0, memMB=64)
    app = sh("exec sleep 1000", resource=resource, num_replicas=3, min_replicas=1)
    app_id = jobs.submit(app)
    jobs.until(lambda: "each node has a replica" in str(jobs.status(app_id)))
    jobs.until(lambda: [x.state for x in jobs.status(app_id).replicas].count(RUNNING) == 2)
    status = jobs.status(app_id)
    assert status.state is RUNNING
    (waiting,) = (x for x in status.replicas if x.state is PENDING)
    assert waiting.error == "Unschedulable: each node has a replica of this job"
    assert {x.host for x in status.replicas} == {"127.0.0.2", "127.0.0.3", ""}


def test_replicas_can_be_allowed_to_share_a_node(jobs: Jobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    work = workspace(tmp_path, TRAINS)
    app = train(str(go), j="1:3x1", cpu=0)
    app_id = jobs.submit(app, workspace=work, strategy="PACK")
    jobs.until(lambda: jobs.have_said(app_id, "begin 2 of 3", 3))
    go.touch()
    assert jobs.wait(app_id).state is SUCCEEDED


def test_cancel_stops_all_processes_gracefully(jobs: Jobs, tmp_path: Path) -> None:
    """One of them has left its session and its parent."""
    mark = f"MARK_OF_TEST={tmp_path}"
    app = sh(
        f"trap 'echo asked > {tmp_path}/$RELIGHT_REPLICA_ID; exit 0' TERM\n"
        "setsid sh -c 'sleep 1000 & sleep 1000' & while :; do sleep 0.1; done",
        num_replicas=2,
        env=dict([mark.split("=")]),
    )
    app_id = jobs.submit(app)
    jobs.until(lambda: all(x.state is RUNNING for x in jobs.status(app_id).replicas))
    jobs.until(lambda: len(of_variable(mark)) >= 8)
    jobs.scheduler.cancel(app_id)
    assert jobs.wait(app_id).state is CANCELLED
    jobs.until(lambda: not of_variable(mark))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["0", "1"]
    jobs.scheduler.cancel(app_id)


def test_no_process_outlives_killed_driver(jobs: Jobs, tmp_path: Path) -> None:
    mark = f"MARK_OF_TEST={tmp_path}"
    app = sh(
        f"trap 'echo asked > {tmp_path}/asked; exit 0' TERM\n"
        "setsid sleep 1000 & while :; do echo much; sleep 0.1; done",
        env=dict([mark.split("=")]),
    )
    app_id = jobs.submit(app)
    jobs.until(lambda: jobs.lines(app_id, "main"))
    os.kill(_driver(app_id), signal.SIGKILL)
    status = jobs.wait(app_id)
    assert status.state is FAILED
    assert status.message == "the driver of the job was killed"
    assert status.replicas[0].state is FAILED
    jobs.until(lambda: not of_variable(mark))
    assert (tmp_path / "asked").exists()


def _driver(app_id: str) -> int:
    """Return a job's driver process."""
    name = app_id.rpartition(":")[2]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, output = path.read_bytes(), os.readlink(path.parent / "fd" / "1")
        except OSError:
            continue
        if b".relight/driver.py" in words and output.endswith(f"job-driver-{name}.log"):
            return int(path.parent.name)
    raise AssertionError("there is no driver")


def test_status_reports_why_replica_is_pending(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("true", resource=Resource(cpu=1, gpu=8, memMB=64)))
    jobs.until(lambda: "Unschedulable" in jobs.status(app_id).message)
    status = jobs.status(app_id)
    assert status.state is PENDING
    assert status.message == (
        "main/0: Unschedulable: it needs 8 GPU, but no node has more than 0 GPU"
    )
    jobs.scheduler.cancel(app_id)
    assert jobs.wait(app_id).state is CANCELLED


def test_following_logs_continues_across_a_retry(jobs: Jobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = (
        f"echo first; until [ -e {go} ]; do sleep 0.1; done; printf last; "
        f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 3; }}"
    )
    app_id = jobs.submit(sh(text, max_retries=1))
    lines = jobs.scheduler.logs(app_id, LogQuery("main", 0, follow=True))
    assert next(lines) == "first"
    go.touch()
    assert list(lines) == ["last", "first", "last"]
    status = jobs.wait(app_id)
    assert status.state is SUCCEEDED
    assert status.restarts == 1


def test_missing_command_error_shows_the_command(jobs: Jobs) -> None:
    app = AppDef("job", [Role("main", "", entrypoint="no-such-program", resource=ONE_CPU)])
    status = jobs.wait(jobs.submit(app))
    assert status.state is FAILED
    assert status.exitcode == 127
    assert status.message == "main/0: no-such-program: No such file or directory"


def test_jobs_are_listed_newest_first_until_deleted(
    jobs: Jobs, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"http://{cluster.dashboard}")
    first = jobs.submit(sh("true"))
    assert jobs.wait(first).state is SUCCEEDED
    second = jobs.submit(sh("exec sleep 1000"))
    jobs.until(lambda: jobs.status(second).state is RUNNING)
    listed = [each for each in jobs.scheduler.list() if each.app_id in (first, second)]
    assert [(each.app_id, each.state, each.name) for each in listed] == [
        (second, RUNNING, "job"),
        (first, SUCCEEDED, "job"),
    ]
    jobs.scheduler.delete(second)
    assert jobs.scheduler.status([first, second]).keys() == {first}
    assert second not in {each.app_id for each in jobs.scheduler.list()}
    assert jobs.scheduler.affinity() > 0


def test_error_names_unknown_job_or_replica(jobs: Jobs, cluster: RayCluster) -> None:
    nothing = f"{cluster.dashboard}:nothing"
    assert jobs.scheduler.status([nothing]) == {}
    with pytest.raises(UsageError, match=f"no job {nothing} on this cluster"):
        jobs.scheduler.cancel(nothing)
    app_id = jobs.submit(sh("true"))
    with pytest.raises(UsageError, match="has no replica main/3") as caught:
        jobs.lines(app_id, "main", 3)
    assert caught.value.hint == "it has main/0 to 0"


def test_existing_job_name_is_rejected(jobs: Jobs, cluster: RayCluster) -> None:
    request = jobs.scheduler.render(sh("true"), {"dashboard_address": cluster.dashboard}, "same")
    app_id = jobs.scheduler.submit(request)
    with pytest.raises(UsageError, match="already exists"):
        jobs.scheduler.submit(request)
    jobs.wait(app_id)
    jobs.scheduler.delete(app_id)


def test_replica_can_request_restart_when_time_limit_expires(jobs: Jobs) -> None:
    """It can read its deadline."""
    limit_s = 3  # not a minute
    text = (
        "trap 'exit 75' TERM; echo $RELIGHT_END_TIME $(date +%s) $RELIGHT_REQUEUES\n"
        'while [ "$RELIGHT_REQUEUES" = 0 ]; do sleep 0.1; done'
    )
    cfg = {"dashboard_address": jobs.cluster.dashboard, "timeout": 1}
    request = jobs.scheduler.render(sh(text), cfg, "limited")
    request.body["order"]["timeout_s"] = limit_s
    begun = int(time.time())
    app_id = jobs.scheduler.submit(request)
    status = jobs.wait(app_id)
    lines = [line.split() for line in jobs.lines(app_id, "main")]
    first, second = (line for line in lines if line != ["Terminated"])  # printed by the shell
    jobs.scheduler.delete(app_id)
    assert (status.state, status.restarts) == (SUCCEEDED, 1)
    assert (first[2], second[2]) == ("0", "1")
    for end, now in ((int(first[0]), int(first[1])), (int(second[0]), int(second[1]))):
        assert begun <= end - limit_s <= now
        begun = end  # the second attempt has its own time limit
