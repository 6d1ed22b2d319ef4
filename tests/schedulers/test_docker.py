"""Jobs on a real Docker daemon."""

import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from clusters.docker import IMAGE

from relight.base.errors import MachineError, UsageError
from relight.job.app import AppDef, AppState, BindMount, Resource
from relight.job.user import user_name
from relight.schedulers.docker import scheduler as docker
from schedulers.docker_jobs import (  # noqa: F401  # fixtures
    CANCELLED,
    FAILED,
    FOR_EVER,
    RUNNING,
    SUCCEEDED,
    Jobs,
    daemon,
    jobs,
    sh,
)

pytestmark = [pytest.mark.slow, pytest.mark.needs_docker]
MEET = (
    "relight run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=${app_id} "
    "--rdzv-endpoint=$${${rank0_env}:=localhost}:29500 --no-python "
    "sh -c 'echo $RANK of $WORLD_SIZE on $MASTER_ADDR'"
)


def test_job_runs_and_logs_can_be_read_by_stream_and_replica(jobs: Jobs) -> None:
    text = "echo out ${replica_id} $GREETING; echo err >&2; printf 'no end'"
    its = sh(text, num_replicas=2, env={"GREETING": "$hello"}, resource=Resource(1, 0, 64))
    app_id = jobs.submit(its)
    status = jobs.wait(app_id)
    assert (status.state, status.exitcode, status.restarts) == (SUCCEEDED, 0, 0)
    seen = [(r.role, r.replica, r.state, r.exitcode) for r in status.replicas]
    assert seen == [("main", 0, SUCCEEDED, 0), ("main", 1, SUCCEEDED, 0)]
    assert jobs.lines(app_id, 1, stream="stdout") == ["out 1 $hello", "no end"]
    assert jobs.lines(app_id, 1, stream="stderr") == ["err"]
    assert sorted(jobs.lines(app_id, 0)) == ["err", "no end", "out 0 $hello"]
    host = jobs.daemon.client.inspect_container(jobs.daemon.containers()[0]["Id"])["HostConfig"]
    assert (host["Memory"], host["ShmSize"], host["NanoCpus"]) == (64 << 20, 64 << 20, 10**9)


def test_nodes_in_a_docker_job_can_rendezvous(jobs: Jobs) -> None:
    """Agents in two containers find each other by the first container's name, and form a group."""
    app_id = jobs.submit(sh(MEET, num_replicas=2))
    status = jobs.wait(app_id)
    said = [line for number in (0, 1) for line in jobs.lines(app_id, number)]
    assert status.state is SUCCEEDED, said
    found = sorted(re.findall(r"(\d) of (\d) on (\S+)", "\n".join(said)))
    assert [(rank, size) for rank, size, _ in found] == [(str(n), "4") for n in range(4)], said
    assert len({master for *_, master in found}) == 1


def test_multi_node_job_runs_in_image_without_relight(jobs: Jobs) -> None:
    """The job brings its launcher. First, relight is removed from the test image."""
    remove = (
        'python3 -c \'import os, shutil; os.remove("/usr/bin/relight"); '
        'os.rename("/opt/relight/relight", "/opt/launcher"); shutil.rmtree("/opt/relight"); '
        'os.mkdir("/opt/relight"); os.rename("/opt/launcher", "/opt/relight/relight")\' && '
    )
    app_id = jobs.submit(sh(remove + MEET, num_replicas=2))
    status = jobs.wait(app_id)
    said = [line for number in (0, 1) for line in jobs.lines(app_id, number)]
    assert status.state is SUCCEEDED, said
    assert len(re.findall(r"(\d) of 4 on (\S+)", "\n".join(said))) == 4, said


def test_duplicate_network_is_removed(jobs: Jobs) -> None:
    """Two commands that create the network at the same time leave two networks. The next command
    removes one.
    """
    labels = {"relight/user": "somebody"}
    for _ in (1, 2):
        jobs.daemon.client.create_network("twice", driver="bridge", labels=labels)
    app_id = jobs.submit(sh(MEET, num_replicas=2), network="twice")
    assert jobs.wait(app_id).state is SUCCEEDED, jobs.lines(app_id)
    jobs.scheduler.delete(app_id)
    assert jobs.daemon.client.networks(names=["twice"]) == []


def test_job_starts_despite_concurrent_network_changes(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before a container needs the network, another command removes it or creates one with
    the same name.
    """
    make, client = docker._make_network, jobs.daemon.client
    labels = {"relight/user": "somebody"}
    calls: list[str] = []

    def interfered(own: Any, name: str) -> None:
        calls.append(name)
        make(own, name)
        if len(calls) in (1, 2):
            client.create_network(name, driver="bridge", labels=labels)
        elif len(calls) == 3:
            for network in client.networks(names=[name]):
                client.remove_network(network["Id"])

    monkeypatch.setattr(docker, "_make_network", interfered)
    assert jobs.wait(jobs.submit(sh("true"), network="busy")).state is SUCCEEDED
    assert len(calls) == 4
    assert len(client.networks(names=["busy"])) == 1


def test_failure_of_one_replica_stops_the_job(jobs: Jobs) -> None:
    """The waiting command stops the other replicas, and the exit code is that of the failed one."""
    app_id = jobs.submit(sh(FOR_EVER, "server"), sh("exit 3", "trainer"))
    status = jobs.wait(app_id)
    assert (status.state, status.exitcode) == (FAILED, 3)
    assert status.message == "trainer/0 failed with exit code 3"
    assert [replica.state for replica in status.replicas] == [CANCELLED, FAILED]
    assert [listed.state for listed in jobs.scheduler.list()] == [FAILED]


def test_failed_job_is_over_only_after_all_replicas_have_exited(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting command kills a replica that ignores SIGTERM. Until then, the job is running and
    says why it is ending.
    """
    app_id = jobs.submit(sh("trap '' TERM; echo up; sleep 1000", "server"), sh("exit 3", "trainer"))
    jobs.until(lambda: "up" in jobs.lines(app_id, role="server"))
    status = jobs.status(app_id)
    jobs.until(lambda: jobs.status(app_id).message)
    status = jobs.status(app_id)
    assert status.state is RUNNING
    assert status.message == "trainer/0 failed with exit code 3; the others are being stopped"
    monkeypatch.setattr(docker, "STOP_LIMIT_S", 0.5)
    status = jobs.wait(app_id)
    assert (status.state, status.exitcode) == (FAILED, 3)
    assert [replica.exitcode for replica in status.replicas] == [137, 3]


def test_status_includes_failure_reason_from_replica(jobs: Jobs) -> None:
    """It is the worker's exception or, without a report, the last line of stderr."""
    text = "relight run --nproc-per-node=2 --max-restarts=0 /tmp/x.py"
    app_id = jobs.submit(sh(f"echo 'raise KeyError(7)' > /tmp/x.py; {text}"))
    assert jobs.wait(app_id).message == "main/0 failed with exit code 1: KeyError: 7"
    app_id = jobs.submit(sh("echo first >&2; echo last >&2; sleep 0.2; echo out; exit 4"))
    status = jobs.wait(app_id)
    assert (status.message, status.exitcode) == ("main/0 failed with exit code 4: last", 4)


def test_each_job_has_its_own_token(jobs: Jobs) -> None:
    """Its replicas share it, and an explicit one is kept."""
    its = sh("echo $RELIGHT_TOKEN", num_replicas=2)
    app_ids = [jobs.submit(its), jobs.submit(its), jobs.submit(its, env={"RELIGHT_TOKEN": "mine"})]
    said = []
    for app_id in app_ids:
        jobs.wait(app_id)
        said.append([*jobs.lines(app_id, 0), *jobs.lines(app_id, 1)])
    assert [len(set(tokens)) for tokens in said] == [1, 1, 1]
    assert said[0] != said[1] and len(said[0][0]) == 32
    assert said[2] == ["mine", "mine"]


def test_job_with_min_replicas_continues_with_fewer_replicas(jobs: Jobs) -> None:
    """It succeeds if the minimum number of replicas does."""
    text = "[ ${replica_id} != 1 ] || exit 3; sleep 1"
    status = jobs.wait(jobs.submit(sh(text, num_replicas=3, min_replicas=2)))
    assert status.state is SUCCEEDED
    assert [replica.exitcode for replica in status.replicas] == [0, 3, 0]
    assert jobs.wait(jobs.submit(sh(text, num_replicas=3))).exitcode == 3


def test_cancel_is_final_and_idempotent(jobs: Jobs) -> None:
    """The job gets SIGTERM, isn't restarted, and is over when cancel returns. Everyone sees it as
    cancelled.
    """
    its = sh(f"echo up; {FOR_EVER}".replace("exit 7", "echo saved; exit 7"), max_retries=3)
    app_id = jobs.submit(its)
    jobs.until(lambda: "up" in jobs.lines(app_id))
    assert jobs.status(app_id).state is RUNNING
    jobs.scheduler.cancel(app_id)
    status = docker.Docker().status([app_id])[app_id]
    assert (status.state, status.restarts) == (CANCELLED, 0)
    assert status.exitcode != 0
    assert jobs.lines(app_id) == ["up", "saved"]
    jobs.scheduler.cancel(app_id)
    assert jobs.status(app_id).state is CANCELLED


def test_cancel_kills_replica_that_ignores_sigterm(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so after the grace period."""
    monkeypatch.setattr(docker, "STOP_LIMIT_S", 0.5)
    app_id = jobs.submit(sh("trap '' TERM; echo up; sleep 1000"))
    jobs.until(lambda: "up" in jobs.lines(app_id))
    jobs.scheduler.cancel(app_id)
    assert jobs.status(app_id).state is CANCELLED
    assert jobs.status(app_id).replicas[0].exitcode == 137


def test_unstarted_containers_can_be_cancelled_and_deleted(jobs: Jobs) -> None:
    """An interrupted submit may leave them behind."""
    request = jobs.scheduler.render(AppDef("job", (sh("true"),)), {"network": "none"}, "job-x0")
    container = request.body["containers"][0]
    jobs.daemon.client.create_container_from_config(container["config"], container["name"])
    assert jobs.status("job-x0").state is AppState.SUBMITTED
    jobs.scheduler.cancel("job-x0")
    assert jobs.status("job-x0").state is CANCELLED
    jobs.scheduler.delete("job-x0")
    assert jobs.daemon.containers() == []
    jobs.scheduler.delete("job-x0")


def test_interrupted_start_is_rolled_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """ctrl-C leaves no container behind, even if its id isn't known yet."""
    create = docker._create

    def interrupted(*arguments: Any) -> str:
        create(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(docker, "_create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.submit(sh("true"))
    assert jobs.daemon.containers() == []


def test_failed_replica_is_restarted(jobs: Jobs, tmp_path: Path) -> None:
    """Its role limits the number of restarts. Logs cover all attempts, and only the last failure
    counts.
    """
    mounts = (BindMount(str(tmp_path), "/d"),)
    text = "echo x >> /d/tries; echo try; sleep 0.3; read a b c < <(echo $(cat /d/tries)); [ $c ]"
    app_id = jobs.submit(sh(text, mounts=mounts, max_retries=5))
    assert jobs.lines(app_id, follow=True) == ["try"] * 3
    status = jobs.wait(app_id)
    assert (status.state, status.restarts) == (SUCCEEDED, 2)
    assert jobs.wait(jobs.submit(sh("exit 5", max_retries=1))).exitcode == 5


def test_delete_leaves_nothing_behind(jobs: Jobs, tmp_path: Path) -> None:
    """No container, image or network is left from a failed or running job."""
    (tmp_path / "x").write_text("x")
    failed = jobs.submit(sh("exit 1"), workspace=str(tmp_path))
    jobs.wait(failed)
    running = jobs.submit(sh(FOR_EVER))
    jobs.scheduler.delete(failed)
    assert list(jobs.scheduler.status([failed, running])) == [running]
    assert len(jobs.daemon.client.networks(names=["relight"])) == 1
    jobs.scheduler.delete(running)
    assert jobs.daemon.containers() == []
    assert jobs.daemon.client.networks(names=["relight"]) == []
    tags = [tag for image in jobs.daemon.client.images() for tag in image["RepoTags"] or []]
    assert tags == [IMAGE]


def test_failed_start_leaves_no_replica_running(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(MachineError, match="could not select device driver"):
        gpu = sh("true", "gpu", resource=Resource(1, 1, 100))
        jobs.submit(sh(FOR_EVER), gpu, workspace=str(tmp_path))
    with pytest.raises(MachineError, match="bind source path does not exist"):
        jobs.submit(sh("true"), sh("true", "bad", mounts=(BindMount("/no/such/path", "/d"),)))
    assert jobs.daemon.containers() == []
    assert len(jobs.daemon.client.images()) == 1
    assert jobs.scheduler.list() == []


def test_gpu_can_be_used_by_only_one_job(jobs: Jobs) -> None:
    """A one-line error refuses GPUs used by a running job, with a way to choose others."""
    config = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
    labels = {"relight/gpus": "0,1", "relight/app-id": "other-x1"}
    client = jobs.daemon.client
    client.start(client.create_container_from_config({**config, "Labels": labels}, "other"))
    gpu = sh("true", resource=Resource(1, 1, 100))
    with pytest.raises(UsageError, match="GPU 0 belongs to the running job other-x1"):
        jobs.submit(gpu)
    with pytest.raises(MachineError, match="could not select device driver"):
        jobs.submit(gpu, gpus=["2"])  # this succeeds up to the missing driver


def test_unknown_job_or_replica_error_lists_existing_ones(jobs: Jobs) -> None:
    for verb in (jobs.scheduler.cancel, jobs.lines):
        with pytest.raises(UsageError, match="no job nosuch-x1"):
            verb("nosuch-x1")
    assert jobs.scheduler.status(["nosuch-x1"]) == {}
    app_id = jobs.submit(sh("true"))
    with pytest.raises(UsageError, match="has no replica main/1") as caught:
        jobs.lines(app_id, 1)
    assert caught.value.hint == "it has main/0"


def test_own_jobs_are_listed_newest_first(jobs: Jobs) -> None:
    """Containers that don't belong to relight aren't listed."""
    config = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
    others = {"relight/app-id": "a-x1", "relight/user": "somebody", "relight/role": "r"}
    for name, labels in (("plain", {}), ("others", {**others, "relight/replica": "0"})):
        jobs.daemon.client.create_container_from_config({**config, "Labels": labels}, name)
    first = jobs.submit(sh("true"))
    jobs.wait(first)
    time.sleep(1)  # the daemon's times are in whole seconds
    second = jobs.submit(sh(FOR_EVER))
    listed = jobs.scheduler.list()
    seen = [(each.app_id, each.state, each.name) for each in listed]
    assert seen == [(second, RUNNING, "job"), (first, SUCCEEDED, "job")]
    assert abs(datetime.fromisoformat(listed[0].submitted).timestamp() - time.time()) < 600


def test_job_with_removed_container_counts_as_failed(jobs: Jobs) -> None:
    app_id = jobs.submit(sh("true", num_replicas=2))
    jobs.wait(app_id)
    jobs.daemon.client.remove_container(jobs.daemon.containers()[0]["Id"])
    status = jobs.status(app_id)
    assert (status.state, status.message) == (FAILED, "1 of its containers were removed")


def test_replica_killed_by_oom_killer_is_reported(jobs: Jobs) -> None:
    """The report includes its memory limit."""
    text = (
        "x = [bytes(10_000_000) for _ in range(100)]; x = [b'1' * 10_000_000 for _ in range(100)]"
    )
    its = sh("", entrypoint="/usr/bin/python3", args=("-c", text), resource=Resource(1, 0, 50))
    status = jobs.wait(jobs.submit(its))
    if status.state is FAILED and status.replicas[0].error == "":
        pytest.skip("this kernel does not limit the memory of containers")
    assert status.message == "main/0 failed with exit code 137: out of memory (it had 50 MiB)"


def test_replicas_on_host_network_rendezvous_on_localhost(jobs: Jobs) -> None:
    """Container names don't exist on that network."""
    text = (
        "relight run --nnodes=2 --rdzv-backend=c10d --rdzv-id=x "
        "--rdzv-endpoint=$RELIGHT_RANK0_HOST:29511 --no-python sh -c 'echo $WORLD_SIZE'"
    )
    app_id = jobs.submit(sh(text, num_replicas=2), network="host")
    assert jobs.wait(app_id).state is SUCCEEDED, jobs.lines(app_id)
    assert jobs.lines(app_id, 1, stream="stdout") == ["2"]


def test_auto_selects_docker_if_daemon_responds(jobs: Jobs) -> None:
    assert jobs.scheduler.affinity() == 10
    assert user_name() and os.getuid() == 0
