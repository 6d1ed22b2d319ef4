"""`relight run` without flags in pods, and under a launcher that sets a rank for each node.

The pods are Lab hosts with the variables that the controllers would set: no package provides a
Kubernetes API server, so none runs in these tests.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment, long
from netlab import Lab

from clusters.workers import RELIGHT_RUN, SHELL, Worker, seen, write

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]
PODS = ["train-0", "train-1", "train-2"]
SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def pytorchjob(index: int) -> dict[str, str]:
    """Kubeflow's training operator since 1.7, with PET_ variables beside the older ones."""
    return {**old_pytorchjob(index), "WORLD_SIZE": "6", "PET_NPROC_PER_NODE": "2",
            "PET_NNODES": "3", "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": "train-0",
            "PET_MASTER_PORT": "23456", "MASTER_ADDR": "train-0"}  # fmt: skip


def old_pytorchjob(index: int) -> dict[str, str]:
    """Kubeflow's training operator before 1.7: one process per pod; the master gets `localhost`."""
    address = "train-0" if index else "localhost"
    return {**SERVICE, "MASTER_ADDR": address, "MASTER_PORT": "23456", "WORLD_SIZE": "3",
            "RANK": str(index), "PYTHONUNBUFFERED": "1"}  # fmt: skip


def trainjob(index: int) -> dict[str, str]:
    """Kubeflow's trainer 2, based on JobSet."""
    return {**SERVICE, "JOB_COMPLETION_INDEX": str(index), "PET_NNODES": "3",
            "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": "train-0",
            "PET_MASTER_PORT": "29400"}  # fmt: skip


def indexed_job(index: int) -> dict[str, str]:
    """A Job with completionMode: Indexed, and a variable set by the user."""
    return {**SERVICE, "JOB_COMPLETION_INDEX": str(index), "NNODES": "3"}


def elastic_job(index: int) -> dict[str, str]:
    """The same Job with a range of nodes."""
    return {**SERVICE, "JOB_COMPLETION_INDEX": str(index), "PET_NNODES": "2:3"}


def jobset(index: int) -> dict[str, str]:
    """A JobSet with the variables from JobSet's PyTorch example."""
    return {**SERVICE, "JOB_COMPLETION_INDEX": str(index), "RANK": str(index), "NNODES": "3",
            "MASTER_ADDR": "train-0", "MASTER_PORT": "3389"}  # fmt: skip


def ranks(index: int) -> dict[str, str]:
    """No Kubernetes: another launcher that sets a rank for each node."""
    return {"MASTER_ADDR": "train-0", "MASTER_PORT": "12345", "WORLD_SIZE": "3", "RANK": str(index)}


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Three pods."""
    with Lab(hosts=PODS) as lab:
        yield lab


@pytest.mark.parametrize(
    ("controller", "nproc", "port"),
    [
        (pytorchjob, 2, "23456"),
        long(old_pytorchjob, 1, "23456"),
        long(trainjob, 2, "29400"),
        long(indexed_job, 1, ""),
        (elastic_job, 1, ""),
        (jobset, 1, "3389"),
        long(ranks, 1, "12345"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_pods_form_one_job_with_ranks_by_pod_index(
    lab: Lab, tmp_path: Path, controller, nproc: int, port: str
) -> None:
    """The workers rendezvous at the open port."""
    write(tmp_path)
    processes = [
        lab[pod].start(
            [*RELIGHT_RUN, "-v", "worker.py"],
            cwd=tmp_path,
            env=clean_environment(**SHELL, **controller(index)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, pod in enumerate(PODS)
    ]
    texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(texts)
    workers: list[Worker] = seen("".join(texts))
    assert [worker.rank for worker in workers] == list(range(3 * nproc)), "\n".join(texts)
    assert {(worker.world, worker.nodes) for worker in workers} == {(3 * nproc, 3)}
    assert [worker.host for worker in workers] == [pod for pod in PODS for _ in range(nproc)]
    assert len({(worker.job, worker.master) for worker in workers}) == 1
    if port:
        assert {worker.master for worker in workers} == {f"train-0:{port}"}
    for text in texts:
        assert ", from " in text.partition("rendezvous at")[0]
