"""AWS Batch and Ray submissions that are interrupted while the service is slow, or that can't write
their record. Anything left behind is named in the message. Kubernetes has its own file.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from clusters.aws import Aws
from clusters.held import Held
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment

from relight.base.errors import MachineError, UsageError
from relight.job.app import AppDef, Resource, Role
from relight.schedulers.aws_batch import client
from relight.schedulers.aws_batch import scheduler as aws_batch
from schedulers import small_disk

ECHO = ("utils.echo", "--image", "i")
Result = subprocess.CompletedProcess[str]


class Batch:
    """AWS Batch, with the fake AWS behind the proxy."""

    def __init__(self, aws: Aws, path: str) -> None:
        aws.reset()
        self._aws = aws
        self.held = Held(aws.endpoint.removeprefix("http://"), "POST", path)
        self.words = ("submit", "-s", "aws_batch", "-cfg", "queue=gpu", *ECHO)
        self.variables = {**aws.variables, "AWS_ENDPOINT_URL": f"http://{self.held.address}"}

    def left(self) -> list[str]:
        """Return objects that were created and neither ended nor removed."""
        batch = self._aws.client("batch")
        known = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
        running = [
            job["jobName"]
            for status in ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
            for job in batch.list_jobs(jobQueue="gpu", jobStatus=status)["jobSummaryList"]
        ]
        return [each["jobDefinitionName"] for each in known] + running


class Dashboard:
    """Ray, with a dashboard behind the proxy that only knows the jobs' states."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        jobs = self.jobs

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                name = self.path.split("/")[3] if self.path.startswith("/api/jobs/") else ""
                answer: object = {"ray_version": "2.60.0"}
                if self.path.startswith("/api/packages") and self.command == "GET":
                    name = "no package"
                elif self.path == "/api/jobs/":
                    jobs[json.loads(body)["submission_id"]] = "RUNNING"
                elif name in jobs and self.path.endswith("/stop"):
                    jobs[name] = "STOPPED"
                elif name in jobs and self.command == "DELETE":
                    del jobs[name]
                    name = ""
                answer = {"status": jobs[name]} if name in jobs else answer
                self.send_response(200 if not name or name in jobs else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode() if not name or name in jobs else
                                 f"Job {name} does not exist".encode())  # fmt: skip

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.held = Held(f"127.0.0.1:{self._server.server_port}", "POST", "/api/jobs/")
        self.words = ("submit", "-s", "ray", "utils.echo")
        self.variables = {"RAY_ADDRESS": f"http://{self.held.address}"}

    def left(self) -> list[str]:
        return [name for name, state in self.jobs.items() if state == "RUNNING"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


Service = Batch | Dashboard
PATHS = {"definition": "/v1/registerjobdefinition", "job": "/v1/submitjob", "ray": ""}
AWS = pytest.mark.needs_aws
JOB_AND_RAY = [pytest.param("job", marks=AWS), "ray"]


@pytest.fixture(params=[pytest.param("definition", marks=AWS), *JOB_AND_RAY])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    if request.param != "ray":
        batch = Batch(request.getfixturevalue("aws"), PATHS[request.param])
        with batch.held:
            yield batch
        return
    ray = Dashboard()
    with ray.held:
        yield ray
    ray.close()


@pytest.fixture
def variables(service: Service, tmp_path: Path) -> dict[str, str]:
    own = {"HOME": str(tmp_path), "RELIGHT_STATE_DIR": str(tmp_path / "state")}
    return {**service.variables, **own}


def stopped(service: Service, variables: dict[str, str], signals: int) -> Result:
    """Submit a job, and send SIGINT while the response to its create request is held back."""
    with subprocess.Popen(
        [*RELIGHT, *service.words], env=clean_environment(**variables), text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert service.held.reached.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        if signals == 1:
            threading.Timer(0.3, service.held.release.set).start()
        else:
            threading.Timer(0.3, process.send_signal, [signal.SIGINT]).start()
        out, err = process.communicate(timeout=LIMIT_S)
    service.held.release.set()
    return Result(process.args, process.returncode, out, err)


def records(variables: dict[str, str]) -> list[str]:
    folder = Path(variables["RELIGHT_STATE_DIR"]) / "jobs"
    return os.listdir(folder) if folder.exists() else []


@pytest.mark.slow
def test_interrupted_submit_to_slow_service_leaves_nothing_behind(
    service: Service, variables: dict[str, str]
) -> None:
    result = stopped(service, variables, 1)
    assert (result.returncode, result.stdout) == (130, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert not service.left()
    assert records(variables) == []


@pytest.mark.slow
@pytest.mark.parametrize("service", JOB_AND_RAY, indirect=True)
def test_second_interrupt_prints_cleanup_command(
    service: Service, variables: dict[str, str], launch: Launch
) -> None:
    result = stopped(service, variables, 2)
    assert (result.returncode, result.stdout) == (4, ""), result.stderr
    error, hint = result.stderr.splitlines()[-2:]
    assert error.startswith("relight: error: interrupted before the service responded")
    command = hint.removeprefix("hint: relight ").partition(",")[0].split()
    if service.left():
        removed = launch(*command, **variables)
        assert removed.returncode == 0, removed.stderr
    assert not service.left()


@pytest.mark.slow
@pytest.mark.needs_mounts
@pytest.mark.parametrize("how", small_disk.KINDS)
@pytest.mark.parametrize("service", JOB_AND_RAY, indirect=True)
def test_full_state_directory_is_detected_before_submit(
    service: Service, variables: dict[str, str], launch: Launch, tmp_path: Path, how: str
) -> None:
    result = small_disk.submit(launch, service.words, variables, tmp_path, how)
    assert (result.returncode, result.stdout) == (4, ""), result.stderr
    assert result.stderr.startswith("relight: error: can't ")
    assert "Traceback" not in result.stderr
    assert not service.held.made


class Refusing:
    """A Batch client that may register job definitions and nothing else."""

    def describe_job_queues(self, **_: object) -> dict[str, list[str]]:
        return {"jobQueues": ["gpu"]}

    def register_job_definition(self, **_: object) -> dict[str, str]:
        return {"jobDefinitionArn": "arn"}

    def submit_job(self, **_: object) -> None:
        raise UsageError("AWS does not allow batch:SubmitJob")

    def get_paginator(self, _: str) -> None:
        raise UsageError("AWS does not allow batch:ListJobs")

    def deregister_job_definition(self, **_: object) -> None:
        raise UsageError("AWS does not allow batch:DeregisterJobDefinition")


def test_error_names_missing_permission_even_if_cleanup_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client.Aws, "client", lambda *_, **__: contextlib.nullcontext(Refusing()))
    app = AppDef("job", [Role("main", "i", entrypoint="x", resource=Resource(1, 0, 128))])
    scheduler = aws_batch.AwsBatch()
    with pytest.raises(MachineError) as caught:
        scheduler.submit(scheduler.render(app, {"queue": "gpu"}, "job-x1"))
    assert caught.value.message == (
        "AWS does not allow batch:SubmitJob; parts of gpu:job-x1 may remain: "
        "AWS does not allow batch:DeregisterJobDefinition"
    )
    assert caught.value.hint == "relight delete aws_batch://relight/gpu:job-x1"
