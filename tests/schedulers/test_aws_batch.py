"""Jobs on a fake AWS Batch (`clusters/aws.py`), in real containers where it can run them."""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clusters.aws import Aws
from clusters.docker import IMAGE, Dockerd
from conftest import LIMIT_S

from relight.base.errors import MachineError, UsageError
from relight.job.app import AppDef, AppState, Resource, Role
from relight.schedulers.api import LogQuery
from relight.schedulers.aws_batch import request, states
from relight.schedulers.aws_batch import scheduler as aws_batch
from schedulers.docker_jobs import daemon  # noqa: F401  # a fixture

pytestmark = pytest.mark.needs_aws
SMALL = Resource(1, 0, 128)


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """Provide an account with the queues `gpu` and `cpu`, and credentials for it. It runs no
    containers.
    """
    give_access(server, monkeypatch)
    return server


def give_access(server: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    server.reset()


@pytest.fixture
def scheduler(aws: Aws) -> Iterator[aws_batch.AwsBatch]:
    scheduler = aws_batch.AwsBatch()
    yield scheduler
    scheduler.close()


def sh(text: str, **parts: Any) -> AppDef:
    known = {"name": "main", "image": IMAGE, "entrypoint": "sh", "resource": SMALL}
    return AppDef("job", [Role(**{**known, "args": ["-c", text], **parts})])


def submit(scheduler: aws_batch.AwsBatch, app: AppDef, name: str = "job-x1", **cfg: Any) -> str:
    return scheduler.submit(scheduler.render(app, {"queue": "gpu", **cfg}, name))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def definitions(aws: Aws) -> list[str]:
    """Return the active job definitions."""
    known = aws.client("batch").describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    return [each["jobDefinitionName"] for each in known]


def test_multi_node_job_is_submitted_and_found(aws: Aws, scheduler: aws_batch.AwsBatch) -> None:
    app_id = submit(scheduler, sh("true", num_replicas=2))
    assert app_id == "gpu:job-x1"
    assert definitions(aws) == ["job-x1"]
    found = scheduler.status([app_id, "gpu:other", "cpu:job-x1"])
    assert list(found) == [app_id]
    replicas = found[app_id].replicas
    assert [(each.role, each.replica) for each in replicas] == [("main", 0), ("main", 1)]
    (listed,) = scheduler.list()
    assert (listed.app_id, listed.name) == (app_id, "job")
    with pytest.raises(UsageError, match="has no replica main/7") as caught:
        list(scheduler.logs(app_id, LogQuery("main", 7)))
    assert caught.value.hint == "it has main/0 to 1"


def test_deleting_a_job_removes_its_job_definition(aws: Aws, scheduler: aws_batch.AwsBatch) -> None:
    app_id = submit(scheduler, sh("true"))
    scheduler.delete(app_id)
    assert definitions(aws) == []
    with pytest.raises(UsageError, match="no job gpu:nothing in AWS Batch"):
        scheduler.delete("gpu:nothing")
    with pytest.raises(UsageError, match="not an AWS Batch job id"):
        scheduler.cancel("nothing")


def test_unknown_queue_is_rejected_before_anything_is_created(
    aws: Aws, scheduler: aws_batch.AwsBatch
) -> None:
    with pytest.raises(UsageError, match="no job queue gppu") as caught:
        submit(scheduler, sh("true"), queue="gppu")
    assert caught.value.hint == "did you mean gpu?"
    assert definitions(aws) == []


def test_job_definition_of_rejected_job_is_removed(aws: Aws, scheduler: aws_batch.AwsBatch) -> None:
    made = scheduler.render(sh("true"), {"queue": "gpu"}, "job-x1")
    made.body["job"]["jobQueue"] = "nothing"
    with pytest.raises(UsageError, match="AWS rejected SubmitJob"):
        scheduler.submit(made)
    assert definitions(aws) == []


@pytest.mark.parametrize("number", [1, 2])
def test_interrupted_submit_leaves_no_job_or_job_definition(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The interrupt is raised after the request in flight."""
    requests = []

    def interrupted(request: Any, **arguments: Any) -> Any:
        answer = request(**arguments)
        requests.append(answer)
        if len(requests) == number:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr("relight.schedulers.aws_batch.scheduler.finished", interrupted)
    scheduler = aws_batch.AwsBatch()
    with pytest.raises(KeyboardInterrupt):
        submit(scheduler, sh("sleep 1000"), "job-x1")
    assert len(requests) == number
    batch = aws.client("batch")
    assert not batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    status = scheduler.status(["gpu:job-x1"])
    assert not status or status["gpu:job-x1"].state.is_over


def test_job_whose_submit_response_was_lost_is_terminated(
    aws: Aws, scheduler: aws_batch.AwsBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't submitted a second time."""
    with scheduler._aws.client("batch", once=True) as batch:
        requests: list[str] = []

        def lose(**_: Any) -> None:
            requests.append("SubmitJob")
            from botocore.exceptions import ReadTimeoutError

            raise ReadTimeoutError(endpoint_url=aws.endpoint)

        batch.meta.events.register("needs-retry.batch.SubmitJob", lose)
        with pytest.raises(MachineError, match="no response from AWS"):
            submit(scheduler, sh("true", num_replicas=2))
    assert requests == ["SubmitJob"]
    assert definitions(aws) == []
    assert scheduler.status(["gpu:job-x1"])["gpu:job-x1"].state.is_over


def test_jobs_in_deleted_queue_are_reported_as_unknown(
    aws: Aws, scheduler: aws_batch.AwsBatch
) -> None:
    """Other jobs are still listed, and the deleted queue's job definition can be removed."""
    lost = submit(scheduler, sh("true"), "job-x1", queue="cpu")
    known = submit(scheduler, sh("true"), "job-x2")
    batch = aws.client("batch")
    batch.update_job_queue(jobQueue="cpu", state="DISABLED")
    batch.delete_job_queue(jobQueue="cpu")
    assert list(scheduler.status([lost, known])) == [known]
    scheduler.delete(lost)
    assert definitions(aws) == ["job-x2"]


def test_queue_can_be_specified_by_arn(aws: Aws, scheduler: aws_batch.AwsBatch) -> None:
    (queue,) = aws.client("batch").describe_job_queues(jobQueues=["gpu"])["jobQueues"]
    assert submit(scheduler, sh("true"), queue=queue["jobQueueArn"]) == "gpu:job-x1"


def test_jobs_not_submitted_by_relight_are_not_listed(
    aws: Aws, scheduler: aws_batch.AwsBatch
) -> None:
    submit(scheduler, sh("true"))
    batch = aws.client("batch")
    (known,) = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    batch.submit_job(jobName="other", jobQueue="gpu", jobDefinition=known["jobDefinitionArn"])
    assert [each.app_id for each in scheduler.list()] == ["gpu:job-x1"]


def make_bucket(aws: Aws) -> Any:
    s3 = aws.client("s3")
    where = {"LocationConstraint": "eu-central-1"}
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration=where)
    return s3


@pytest.mark.parametrize(
    ("expiry", "said"),
    [
        ("2099-11-29T14:05:00Z", "only until 2099-11-29T"),
        ("", "only until they expire;"),
        (None, ""),
    ],
)
def test_note_says_when_launcher_url_expires_with_credentials(
    aws: Aws,
    scheduler: aws_batch.AwsBatch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expiry: str | None,
    said: str,
) -> None:
    make_bucket(aws)
    if expiry is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    if expiry:
        monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", expiry)
    app = sh("x", entrypoint="relight", args=["run", "x.py"])
    submit(scheduler, app, launcher_uri="s3://bucket/p")
    notes = capsys.readouterr().err
    assert said in notes and notes.count("relight: note: ") == bool(said)


def test_launcher_file_is_stored_only_once(aws: Aws, scheduler: aws_batch.AwsBatch) -> None:
    """Each job can fetch it from a URL without credentials."""
    s3 = make_bucket(aws)
    app = sh("x", entrypoint="relight", args=["run", "x.py"])
    for name in ("job-x1", "job-x2"):
        submit(scheduler, app, name, launcher_uri="s3://bucket/some/where")
    (known,) = s3.list_objects_v2(Bucket="bucket")["Contents"]
    assert known["Key"].startswith("some/where/relight-")
    every = aws.client("batch").describe_job_definitions()["jobDefinitions"]
    for each in every:
        variables = {v["name"]: v["value"] for v in each["containerProperties"]["environment"]}
        assert known["Key"] in variables[request.LAUNCHER_URL]
        assert "Signature" in variables[request.LAUNCHER_URL]
    with pytest.raises(UsageError, match=r"AWS rejected .*bucket does not exist"):
        submit(scheduler, app, "job-x3", launcher_uri="s3://nothing-of-this-name")


@pytest.mark.slow
@pytest.mark.needs_docker
def test_container_runs_and_its_logs_can_be_read(
    daemon: Dockerd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Aws(daemon.host) as aws:
        give_access(aws, monkeypatch)
        scheduler = aws_batch.AwsBatch()
        run_and_read(scheduler)
        scheduler.close()


def run_and_read(scheduler: aws_batch.AwsBatch) -> None:
    text = "echo replica $RELIGHT_REPLICA_ID; echo two >&2; printf 'no end'"
    good = submit(scheduler, sh(text), "good-x1")
    bad = submit(scheduler, sh("echo before; exit 7"), "bad-x1")
    endless = submit(scheduler, sh("exec sleep 1000"), "endless-x1")
    until(lambda: all(scheduler.status([x])[x].state.is_over for x in (good, bad)))
    assert scheduler.status([good])[good].state is AppState.SUCCEEDED
    assert scheduler.status([bad])[bad].state is AppState.FAILED
    lines = list(scheduler.logs(good, LogQuery("main", 0, follow=True)))
    assert sorted(lines) == ["no end", "replica 0", "two"]
    later = LogQuery("main", 0, since=datetime.now(UTC) + timedelta(hours=1))
    assert list(scheduler.logs(good, later)) == []
    until(lambda: scheduler.status([endless])[endless].state is AppState.RUNNING)
    scheduler.cancel(endless)
    until(lambda: scheduler.status([endless])[endless].state is AppState.CANCELLED)


# AWS's descriptions of errors and of nodes, missing from the fake.


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"AWS_PROFILE": "nobody"}, "profile \\(nobody\\) could not be found"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}, "no region configured"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials found"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "no response from AWS"),
        ({"AWS_ENDPOINT_URL": "nothing"}, "Invalid endpoint: nothing"),
        ({"AWS_REGION": "eu_central_1"}, "eu_central_1"),  # takes precedence over the other one
        ({"AWS_REGION": "eu_central_1", "AWS_DEFAULT_REGION": ""}, "eu_central_1"),
    ],
)
def test_missing_credentials_give_one_line_error(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, variables: dict[str, str], said: str
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in variables.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name)
    with pytest.raises((UsageError, MachineError), match=said) as caught:
        submit(aws_batch.AwsBatch(), sh("true"))
    assert "\n" not in caught.value.message


def test_missing_boto3_error_shows_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match="requires the boto3 package"):
        submit(aws_batch.AwsBatch(), sh("true"))


def node(number: int, status: str, **container: Any) -> dict[str, Any]:
    return {"jobId": f"j#{number}", "status": status, "container": container}


def group(nodes: str, role: str) -> dict[str, Any]:
    variables = [{"name": "X", "value": "x"}, {"name": request.ROLE_NAME, "value": role}]
    return {"targetNodes": nodes, "container": {"environment": variables}}


GROUPS = [group("0:0", "a"), group("1:2", "b")]
JOB = {"jobId": "j", "nodeProperties": {"numNodes": 3, "nodeRangeProperties": GROUPS}}
ENDED = {"stoppedAt": 1}


def test_batch_nodes_are_replicas_in_role_order() -> None:
    nodes = [
        node(0, "RUNNING", containerInstanceArn="arn:aws:ecs:eu:1:container-instance/c/123"),
        {**node(2, "RUNNABLE"), "statusReason": "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"},
    ]
    status = states.status({**JOB, "status": "RUNNING", "attempts": [ENDED, {}]}, nodes)
    assert (status.state, status.message, status.restarts) == (AppState.RUNNING, "", 1)
    first, second, third = status.replicas
    assert (first.role, first.replica, first.host) == ("a", 0, "123")
    assert second.state is AppState.SUBMITTED
    assert (third.role, third.replica, third.state) == ("b", 1, AppState.PENDING)
    assert "MISCONFIGURATION" in third.error
    assert states.node_number(JOB, "b", 1) == 2


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"exitCode": 7}, "exit code 7"),
        ({"exitCode": 137, "reason": "OutOfMemoryError: Container killed"}, "out of memory"),
        ({"reason": "CannotPullContainerError: no such image"}, "CannotPullContainerError"),
    ],
)
def test_job_status_reports_the_first_failure(container: dict[str, Any], said: str) -> None:
    nodes = [node(0, "SUCCEEDED", exitCode=0), node(1, "FAILED", **container)]
    job = {**JOB, "status": "FAILED", "statusReason": "Essential container in task exited"}
    status = states.status(job, nodes)
    assert status.state is AppState.FAILED
    assert status.message.startswith(f"b/0: {said}")


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"statusReason": states.CANCELLED}, AppState.CANCELLED),
        ({"statusReason": "by a colleague", "isTerminated": True}, AppState.CANCELLED),
        ({"statusReason": "attempt duration exceeded timeout", "isTerminated": True},
         AppState.FAILED),
        ({"statusReason": "Essential container in task exited"}, AppState.FAILED),
    ],
)  # fmt: skip
def test_terminated_job_counts_as_cancelled_and_timed_out_job_as_failed(
    facts: dict[str, Any], state: AppState
) -> None:
    assert states.status({**JOB, "status": "FAILED", **facts}, []).state is state


def test_logs_include_all_attempts() -> None:
    attempts = [{"container": {"logStreamName": name}} for name in ("one", "two")]
    job = {"attempts": attempts, "container": {"logStreamName": "two"}}
    assert states.streams(job) == ["one", "two"]
    running = {**job, "container": {"logStreamName": "three"}}
    assert states.streams(running) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("status", "ended", "running", "restarts"),
    [("RUNNING", 0, 0, 0), ("RUNNING", 1, 1, 1), ("RUNNABLE", 2, 0, 2), ("FAILED", 3, 0, 2)],
)
def test_later_attempts_count_as_restarts(
    status: str, ended: int, running: int, restarts: int
) -> None:
    attempts = [*([ENDED] * ended), *([{}] * running)]
    assert states.status({**JOB, "status": status, "attempts": attempts}, []).restarts == restarts
