"""`relight.submit` and `relight.map` on a real Slurm, and over SSH with real sshd servers."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.slurm import Slurm
from clusters.sshd import Sshd
from clusters.workers import SHELL
from conftest import LIMIT_S, clean_environment
from netlab import Lab

import relight

pytestmark = pytest.mark.slow
Session = Callable[[str], Any]
BEGIN = """
import json, os, sys, time, relight
LIMIT_S = 180.0

def work(number):
    print("at", number)
    if number == 1:
        raise ValueError("bad shard")
    if number == 2:
        os.kill(os.getpid(), 9)
    return number

def requeues(fails):
    number = os.environ.get("SLURM_RESTART_COUNT", "0")
    if fails and number == "0":
        raise OSError("first attempt")
    return number

def host_and_rank():
    return os.uname().nodename, int(os.environ["RANK"])

def said(future):
    return repr(future.exception(LIMIT_S))

if __name__ == "__main__":
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm cluster with two nodes and a login node."""
    directory = tmp_path_factory.mktemp("slurm")
    with Lab(hosts=["login", "node1", "node2"]) as lab, Slurm(lab, directory) as slurm:
        yield slurm


@pytest.fixture
def session(cluster: Slurm) -> Iterator[Session]:
    """Run a script on the login node; return the JSON that it prints last."""

    def run(text: str) -> Any:
        path = cluster.directory / "session.py"
        path.write_text(BEGIN + textwrap.indent(textwrap.dedent(text), "    "))
        said, code = cluster.run([sys.executable, path], env=SHELL)
        assert code == 0, f"{said}\n{cluster.logs()}"
        return json.loads(said.splitlines()[-1])

    yield run
    cluster.clear()


@pytest.mark.needs_slurm
def test_slurm_array_outlives_python_session(session: Session, cluster: Slurm) -> None:
    """Another session can get its results, exceptions, and logs with the handles."""
    handles = session("""
        futures = relight.map(work, range(4), at_once=2, scheduler="slurm")
        print(json.dumps([each.handle for each in futures]))
    """)
    array = handles[0].removesuffix("_0")
    assert handles == [f"{array}_{number}" for number in range(4)]
    found = session(f"""
        first, bad, killed, last = map(relight.attach, {handles!r})
        print(json.dumps([
            [first.result(LIMIT_S), last.result(LIMIT_S)], last.logs(), said(bad),
            bad.exception().__notes__, type(bad.exception().__cause__).__name__, said(killed)]))
    """)
    assert found[:3] == [[0, 3], "at 3", "ValueError('bad shard')"]
    assert "rank 0 raised ValueError: bad shard" in found[3][0] and handles[1] in found[3][0]
    assert found[4] == "RemoteTraceback"
    assert "was killed by SIGKILL" in found[5] and handles[2] in found[5]
    command = [sys.executable, "-m", "relight"]
    status = cluster.run([*command, "status", array], env=SHELL)[0]
    assert "2 succeeded, 2 failed" in status
    (directory,) = cluster.directory.rglob("jobs/work-*")
    assert cluster.run([*command, "delete", array], env=SHELL)[1] == 0
    assert not directory.exists()


@pytest.mark.needs_slurm
def test_multi_node_slurm_job_returns_results_from_all_ranks(session: Session) -> None:
    found = session("""
        future = relight.submit(host_and_rank, scheduler="slurm", nnodes=2, nproc_per_node=2,
                                resources={"cpu": 2})
        print(json.dumps(future.results(LIMIT_S)))
    """)
    assert found == [["node1", 0], ["node1", 1], ["node2", 2], ["node2", 3]]


@pytest.mark.needs_slurm
def test_requeued_slurm_job_returns_result_of_last_attempt(
    session: Session,
) -> None:
    """Only the failed job in the array is requeued."""
    found = session("""
        futures = relight.map(requeues, [True, False], scheduler="slurm", max_retries=1,
                              max_restarts=1)
        print(json.dumps([each.result(LIMIT_S) for each in futures]))
    """)
    assert found == ["1", "0"]


@pytest.mark.needs_slurm
def test_jobs_in_slurm_array_can_be_cancelled_individually(session: Session) -> None:
    found = session("""
        futures = relight.map(time.sleep, [1000, 0, 1000], at_once=2, scheduler="slurm")
        while not futures[0].running():
            time.sleep(0.05)
        cancelled = [futures[0].cancel(), futures[2].cancel()]
        print(json.dumps([cancelled, futures[1].result(LIMIT_S), futures[1].cancel(),
                          [each.cancelled() for each in futures]]))
    """)
    assert found == [[True, True], None, False, [True, False, True]]


@pytest.mark.needs_slurm
def test_rejected_slurm_array_leaves_nothing_behind(session: Session, cluster: Slurm) -> None:
    before = {*cluster.directory.rglob("call.pickle")}
    found = session("""
        try:
            relight.map(abs, range(1100), scheduler="slurm")
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error), error.hint]))
    """)
    assert found[:2] == ["UsageError", "Slurm rejected the job: Batch job submission failed: "
                         "Invalid job array specification"]  # fmt: skip
    assert "MaxArraySize" in found[2]
    assert {*cluster.directory.rglob("call.pickle")} == before


@pytest.mark.needs_ssh
def test_map_over_ssh_runs_one_job_per_host_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and exceptions are returned, and do not appear in the logs."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    with Sshd(["alpha", "beta"]) as servers:
        cfg = servers.cfg()
        hosts = cfg.pop("hosts")
        futures = relight.map(eval, ["print(7) or 8", "int('x')", "__import__('os').environ['ON']"],
                              hosts=hosts, cfg=cfg)  # fmt: skip
        assert futures[2].handle == ""
        assert futures[0].result(LIMIT_S) == 8
        assert futures[0].logs() == "7"
        assert isinstance(futures[1].exception(LIMIT_S), ValueError)
        assert futures[2].result(LIMIT_S) in ("alpha", "beta")
        assert relight.attach(futures[0].handle).result(LIMIT_S) == 8
        both = relight.submit(eval, "__import__('os').environ['RANK']", hosts=hosts, cfg=cfg)
        assert both.results(LIMIT_S) == ["0", "1"]
