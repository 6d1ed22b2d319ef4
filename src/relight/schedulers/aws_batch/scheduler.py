"""Runs jobs on AWS Batch. An app becomes a job definition and a job based on it.

    render   builds the requests (`request`) as JSON, without credentials or network access
    submit   registers the definition and submits the job; if this fails, removes both
    status   calls DescribeJobs for the job and, if it has several nodes, for each node (`states`)
    logs     reads them from CloudWatch
    cancel   terminates the job
    delete   terminates a running job and deregisters its definition; Batch forgets the job itself
             after a week

A job's id is QUEUE:NAME, as in TorchX.
"""

import hashlib
import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from relight.base import env, redaction
from relight.base.errors import MachineError, RelightError, UsageError
from relight.base.text import did_you_mean
from relight.job import launcher_file
from relight.job.app import NOTHING, AppDef, RetryPolicy
from relight.job.user import user_name
from relight.schedulers import resource_checks
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    LogQuery,
    Option,
    Request,
    Scheduler,
    check_replica,
    local_time,
)
from relight.schedulers.aws_batch import request, states
from relight.schedulers.aws_batch.client import Aws
from relight.schedulers.uninterruptible import finished

_POLL_S = 2.0
_PAGE = 100
"""Maximum number of jobs in one DescribeJobs request."""
_URL_S = 7 * 24 * 3600
"""How long the launcher's URL is valid. This is the maximum that S3 allows. It expires with the
credentials if they are temporary ("Download and upload objects with presigned URLs" in the S3 user
guide).
"""
_ALL = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")


class AwsBatch(Scheduler):
    """Submits jobs to an AWS Batch queue."""

    name = "aws_batch"
    options: Sequence[Option] = (
        Option("queue", str, None, "job queue", True),
        Option("user", str, None, "user name in the job's tags (default: you)"),
        Option("container_user", str, None, "user in the container"),
        Option("privileged", bool, False, "run privileged containers"),
        Option("share_id", str, None, "share identifier, for queues with fair-share scheduling"),
        Option("priority", int, 0, "scheduling priority within the share"),
        Option("timeout", int, None, "minutes after which an attempt is stopped"),
        Option("job_role_arn", str, None, "IAM role for the containers"),
        Option("execution_role_arn", str, None, "IAM role for pulling images and reading secrets"),
        Option("secrets", dict, None, "variables with their secret's ARN, NAME:ARN;NAME:ARN"),
        Option("log_group", str, None, f"CloudWatch log group (default: {request.LOG_GROUP})"),
        Option("ulimits", list, None, "ulimits in the container, NAME=SOFT/HARD;memlock=-1"),
        Option("launcher_uri", str, None, "s3://BUCKET/PREFIX for the launcher, for images "
        "without relight"),
        Option("image_repo", str, None, "repository for the image with the workspace"),
        Option("quiet", bool, False, "don't show the progress of building and pushing images"),
    )  # fmt: skip
    capabilities = Capabilities(
        retries=True, mounts=True, resources=True, images=True, since=True, pushes_images=True
    )

    def __init__(self) -> None:
        self._aws = Aws()

    def affinity(self) -> int:
        """Return how suitable AWS Batch is on this machine. AWS Batch requires the user to
        configure a queue.
        """
        return 1 if find_spec("boto3") is not None and env.read().get("AWS_PROFILE") else 0

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the requests for an app. See `Scheduler.render`."""
        if not cfg.get("queue"):
            raise UsageError("AWS Batch requires a job queue", hint="-cfg queue=NAME")
        _check_launcher(app, cfg)
        cfg = {**cfg, "queue": cfg["queue"].rpartition("/")[2]}  # an ARN ends with the name
        name = request.job_name(app_id)
        definition = request.definition(app, cfg, name, secrets.token_hex(16))
        request.check_size(definition)
        job = request.job(app, cfg, name)
        whole = f"{cfg['queue']}:{name}"
        body = {"app_id": whole, "definition": definition, "job": job}
        hidden = request.definition(_without_secrets(app), cfg, name, redaction.HIDDEN)
        text = json.dumps({"definition": hidden, "job": job}, indent=2)
        return Request(self.name, app, cfg, body, text, tuple(_notes(app, cfg)), whole)

    def submit(self, request_: Request) -> str:
        """Register the definition, submit the job, and return the app's id."""
        body, cfg = request_.body, request_.cfg
        definition = body["definition"]
        with self._aws.client("batch") as batch:
            _check_queue(batch, cfg["queue"])
        if cfg.get("launcher_uri") and request.brings_launcher(request_.app):
            definition = request.with_variable(
                definition, request.LAUNCHER_URL, self._launcher_url(cfg["launcher_uri"])
            )
            request.check_size(definition)
        arn = ""
        try:
            # If the response was lost, a retry would create a duplicate.
            with self._aws.client("batch", once=True) as batch:
                arn = finished(batch.register_job_definition, **definition)["jobDefinitionArn"]
                finished(batch.submit_job, **body["job"], jobDefinition=arn)
        except BaseException as error:
            try:
                if arn:
                    self._undo(body["job"], arn)
                elif not isinstance(error, UsageError):  # it may exist, but its ARN is unknown
                    with self._aws.client("batch", once=True) as batch:
                        _deregister(batch, request_.app_id)
            except RelightError as second:
                first = error.message if isinstance(error, RelightError) else "interrupted"
                raise MachineError(
                    f"{first}; parts of {request_.app_id} may remain: {second.message}",
                    hint=f"relight delete aws_batch://relight/{request_.app_id}",
                ) from error
            raise
        return str(body["app_id"])

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job that exists."""
        found = {}
        with self._aws.client("batch") as batch:
            for app_id in app_ids:
                job = _find(batch, app_id)
                if job is not None:
                    found[app_id] = states.status(job, _nodes(batch, job))
        return found

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's output lines from all attempts, with stdout and stderr combined."""
        with self._aws.client("batch") as batch:
            job = _existing(batch, app_id)
        check_replica(app_id, query, dict(states.roles(job)))
        number = states.node_number(job, query.role, query.replica)
        its_id = f"{job['jobId']}#{number}" if job.get("nodeProperties") else job["jobId"]
        return self._lines(job["jobId"], its_id, query)

    def cancel(self, app_id: str) -> None:
        """Terminate a job."""
        with self._aws.client("batch") as batch:
            job = _existing(batch, app_id)
            if not states.state(job).is_over:
                batch.terminate_job(jobId=job["jobId"], reason=states.CANCELLED)

    def delete(self, app_id: str) -> None:
        """Terminate a job if it is running, and deregister its definition, even if Batch no longer
        knows about the job.
        """
        with self._aws.client("batch") as batch:
            job = _find(batch, app_id)
            if job is None:
                if not _deregister(batch, app_id):
                    raise _unknown(app_id)
                return
            if not states.state(job).is_over:
                batch.terminate_job(jobId=job["jobId"], reason=states.CANCELLED)
            batch.deregister_job_definition(jobDefinition=job["jobDefinition"])

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs in all queues, newest first."""
        found = []
        with self._aws.client("batch") as batch:
            for queue in _queues(batch):
                ids = [
                    each["jobId"]
                    for status in _ALL
                    for each in _pages(batch, "list_jobs", "jobSummaryList", jobQueue=queue,
                                       jobStatus=status)
                    if _is_relight_job(each)
                ]  # fmt: skip
                found += [(queue, job) for job in _described(batch, ids)]
        mine = [
            (queue, job)
            for queue, job in found
            if (job.get("tags") or {}).get(request.USER) == user_name()
        ]
        mine.sort(key=lambda each: each[1].get("createdAt") or 0, reverse=True)
        return [
            JobSummary(
                f"{queue}:{job['jobName']}",
                states.state(job),
                job["tags"].get(request.APP, job["jobName"]),
                local_time(job.get("createdAt")),
            )
            for queue, job in mine
        ]

    def close(self) -> None:
        """Close the connections. Jobs keep running."""
        self._aws.close()

    def _launcher_url(self, uri: str) -> str:
        """Upload the launcher to S3 unless it already exists there, and return its download URL."""
        content = launcher_file.build()
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        name = f"relight-{hashlib.sha256(content).hexdigest()[:16]}"
        key = f"{prefix.rstrip('/')}/{name}".lstrip("/")
        with self._aws.client("s3") as s3:
            known = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("KeyCount")
            if not known:
                s3.put_object(Bucket=bucket, Key=key, Body=content)
            where = {"Bucket": bucket, "Key": key}
            url = s3.generate_presigned_url("get_object", Params=where, ExpiresIn=_URL_S)
            expiry = self._aws.expiry()
        if expiry is not None:
            note(
                "the AWS credentials are temporary, and the launcher's URL is valid only "
                f"until {expiry or 'they expire'}; containers that start later can't download it. "
                "Use long-lived credentials, or an image that contains relight"
            )
        return str(url)

    def _undo(self, job: Mapping[str, Any], arn: str) -> None:
        """Remove a job definition. If a job was created from it but the response was lost, also
        terminate the job.
        """
        try:
            with self._aws.client("batch") as batch:
                for each in _named(batch, job["jobQueue"], job["jobName"]):
                    if each.get("jobDefinition") == arn:
                        batch.terminate_job(jobId=each["jobId"], reason=states.CANCELLED)
        finally:
            with self._aws.client("batch") as batch:
                batch.deregister_job_definition(jobDefinition=arn)

    def _lines(self, job_id: str, its_id: str, query: LogQuery) -> Iterator[str]:
        """Yield a container's lines, one attempt after another, until the job is over. The nodes in
        a job start and finish at different times, and each node may be restarted.
        """
        read: dict[str, str] = {}
        done: set[str] = set()
        was_over = False
        while True:
            with self._aws.client("batch") as batch:
                ids = list(dict.fromkeys([job_id, its_id]))
                found = {each["jobId"]: each for each in _described(batch, ids)}
            over = job_id not in found or states.state(found[job_id]).is_over
            its, came = found.get(its_id) or {}, False
            names = [name for name in states.streams(its) if name not in done]
            for name in names:
                for line in self._new_lines(states.log_group(its), name, query, read):
                    came = True
                    yield line
            done.update(names[:-1])
            # CloudWatch may only show the last lines a few moments after the job has ended.
            if not query.follow or (was_over and not came):
                return
            was_over = over
            if not came:
                time.sleep(_POLL_S)

    def _new_lines(
        self, group: str, stream: str, query: LogQuery, read: dict[str, str]
    ) -> Iterator[str]:
        """Yield a log stream's lines, page by page, starting at the position in `read`. The last
        page is the one whose end token equals its start token. Earlier pages may be empty (API
        reference, GetLogEvents).
        """
        arguments = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
        while True:
            token = {"nextToken": read[stream]} if stream in read else {}
            with self._aws.client("logs") as logs:
                try:
                    page = logs.get_log_events(**arguments, **_times(query), **token)
                except logs.exceptions.ResourceNotFoundException:  # no output yet
                    return
            for event in page["events"]:
                yield from event["message"].removesuffix("\n").split("\n")
            if page["nextForwardToken"] == read.get(stream):
                return
            read[stream] = page["nextForwardToken"]


def note(text: str) -> None:
    """Print a note that is only known when a job is submitted. `render` returns all others."""
    sys.stderr.write(f"relight: note: {text}\n")
    sys.stderr.flush()


def _check_launcher(app: AppDef, cfg: Mapping[str, Any]) -> None:
    uri = str(cfg.get("launcher_uri") or "")
    if uri and not uri.removeprefix("s3://").strip("/"):
        raise UsageError(f"-cfg launcher_uri={uri} names no bucket", hint="s3://BUCKET/PREFIX")
    if uri and not uri.startswith("s3://"):
        raise UsageError(f"-cfg launcher_uri={uri} is not in S3", hint="s3://BUCKET/PREFIX")
    wants = any(role.env.get(launcher_file.VARIABLE) == launcher_file.TRAVELS for role in app.roles)
    if wants and not uri:
        raise UsageError(
            "--launcher=travels: AWS Batch jobs need the launcher in S3",
            hint="choose its place with -cfg launcher_uri=s3://BUCKET/PREFIX",
        )


def _check_queue(batch: Any, queue: str) -> None:
    """Raise an error if the queue does not exist, before anything is created."""
    if batch.describe_job_queues(jobQueues=[queue])["jobQueues"]:
        return
    known = list(_queues(batch))
    hint = did_you_mean(queue, known, f"known: {', '.join(known) or 'none'}")
    raise UsageError(f"AWS Batch has no job queue {queue} in this region", hint=hint)


def _queues(batch: Any) -> Iterator[str]:
    for each in _pages(batch, "describe_job_queues", "jobQueues"):
        yield each["jobQueueName"]


def _pages(batch: Any, operation: str, field: str, **arguments: Any) -> Iterator[Any]:
    for page in batch.get_paginator(operation).paginate(**arguments):
        yield from page[field]


def _parts(app_id: str) -> tuple[str, str]:
    """Split a job's id into its queue and its name."""
    queue, colon, name = app_id.rpartition(":")
    if not colon or not queue or not name:
        raise UsageError(f"not an AWS Batch job id: {app_id}", hint="QUEUE:NAME")
    return queue, name


def _named(batch: Any, queue: str, name: str) -> list[dict[str, Any]]:
    """Return the jobs with this name in a queue, or an empty list if the queue has been deleted."""
    wanted = [{"name": "JOB_NAME", "values": [name]}]
    try:
        pages = _pages(batch, "list_jobs", "jobSummaryList", jobQueue=queue, filters=wanted)
        return [each for each in pages if each["jobName"] == name]  # Batch ignores case
    except batch.exceptions.ClientException:
        if batch.describe_job_queues(jobQueues=[queue])["jobQueues"]:
            raise
        return []


def _find(batch: Any, app_id: str) -> dict[str, Any] | None:
    """Return the newest job with this id, or None."""
    found = _named(batch, *_parts(app_id))
    if not found:
        return None
    newest = max(found, key=lambda each: each.get("createdAt") or 0)
    described = _described(batch, [newest["jobId"]])
    return described[0] if described else None


def _deregister(batch: Any, app_id: str) -> bool:
    """Deregister the definitions of a job whose ARN is unknown, and return whether there are
    any.
    """
    _, name = _parts(app_id)
    known = _pages(batch, "describe_job_definitions", "jobDefinitions", jobDefinitionName=name,
                   status="ACTIVE")  # fmt: skip
    found = [each for each in known if request.USER in (each.get("tags") or {})]
    for each in found:
        batch.deregister_job_definition(jobDefinition=each["jobDefinitionArn"])
    return bool(found)


def _is_relight_job(job: Mapping[str, Any]) -> bool:
    """Return whether a job may have been created by relight, which gives a job and its definition
    the same name.
    """
    arn = str(job.get("jobDefinition") or "")
    return not arn or arn.rpartition("/")[2].rpartition(":")[0] == job["jobName"]


def _existing(batch: Any, app_id: str) -> dict[str, Any]:
    job = _find(batch, app_id)
    if job is None:
        raise _unknown(app_id)
    return job


def _unknown(app_id: str) -> UsageError:
    return UsageError(f"no job {app_id} in AWS Batch", hint="relight list -s aws_batch")


def _described(batch: Any, ids: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for at in range(0, len(ids), _PAGE):
        found += batch.describe_jobs(jobs=list(ids[at : at + _PAGE]))["jobs"]
    return found


def _nodes(batch: Any, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes in a job, except those that have not been started yet."""
    size = (job.get("nodeProperties") or {}).get("numNodes")
    if size is None:
        return [dict(job)]
    return _described(batch, [f"{job['jobId']}#{number}" for number in range(size)])


def _times(query: LogQuery) -> dict[str, int]:
    """Return a query's time range in milliseconds, as CloudWatch requires."""
    said: dict[str, datetime | None] = {"startTime": query.since, "endTime": query.until}
    return {name: int(at.timestamp() * 1000) for name, at in said.items() if at is not None}


def _without_secrets(app: AppDef) -> AppDef:
    """Return a copy of the app for display, with its secrets hidden."""
    roles = [
        replace(
            role, args=redaction.redact_argv(role.args), env=redaction.redact_env(dict(role.env))
        )
        for role in app.roles
    ]
    return replace(app, roles=roles)


def _notes(app: AppDef, cfg: Mapping[str, Any]) -> Iterator[str]:
    yield from resource_checks.too_little(app, gpus=True)
    first = app.roles[0].name
    if len(app.roles) > 1:
        yield f"AWS Batch ends the job and all its roles when {first}/0 ends"
    for role in app.roles:
        if role.is_elastic:
            yield (
                f"{role.name}: AWS Batch starts all {role.num_replicas} nodes and does not "
                f"replace lost ones; the job ends when {first}/0 ends"
            )
        if role.max_retries and role.retry_policy is RetryPolicy.REPLICA:
            yield f"{role.name}: AWS Batch retries the job as a whole"
        shown = redaction.redact_env(role.env)
        readable = [name for name, value in role.env.items() if shown[name] != value]
        if redaction.redact_argv(role.args) != list(role.args):
            readable.append("the secrets in its arguments")
        if readable:
            yield (
                f"{role.name}: anyone who can read job definitions can read {', '.join(readable)} "
                "(hidden in a dry run); use -cfg secrets to keep them in Secrets Manager: "
                "docs/clusters/aws-batch.md#secrets"
            )
    if request.brings_launcher(app) and not cfg.get("launcher_uri"):
        yield "the image must contain relight, or use -cfg launcher_uri=s3://BUCKET/PREFIX"
    if cfg.get("priority") and not cfg.get("share_id"):
        yield "priority has no effect without share_id"
