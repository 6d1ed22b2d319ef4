"""`relight run` without flags under a real mpirun, on Lab hosts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import long
from netlab import Lab

from clusters.mpi import Mpi, slots
from clusters.workers import RELIGHT_RUN, SHELL, seen, write

pytestmark = [pytest.mark.slow, pytest.mark.needs_mpi]
# Open MPI compresses names into a pattern; these have digits in the middle and varying lengths.
NODES = ["gpu-a9-07", "gpu-a10-07", "gpu-a10-08", "node1"]


@pytest.fixture
def mpi(tmp_path: Path) -> Iterator[Mpi]:
    """A login node and four others."""
    write(tmp_path)
    with Lab(hosts=["login", *NODES]) as lab:
        yield Mpi(lab, tmp_path)


def relight(mpi: Mpi, host: str, *flags: str, more: tuple[str, ...] = ()) -> tuple[str, int]:
    """Run `mpirun flags relight run more worker.py` on a host."""
    return mpi.run(host, *flags, *RELIGHT_RUN, *more, "worker.py", **SHELL)


@pytest.mark.parametrize(
    "start", ["login", long(NODES[0])], ids=["from the login node", "from its first node"]
)
def test_run_needs_no_flags_under_mpirun(mpi: Mpi, start: str) -> None:
    """One process per host makes one job in mpirun's order, wherever mpirun itself runs."""
    text, code = relight(mpi, start, "--host", slots(NODES), more=("-v", "--nproc-per-node=2"))
    assert code == 0, text
    workers = seen(text)
    assert [worker.rank for worker in workers] == list(range(8)), text
    assert {(worker.world, worker.nodes) for worker in workers} == {(8, 4)}
    assert [worker.host for worker in workers] == [node for node in NODES for _ in range(2)]
    assert all(worker.place == str(worker.group_rank) for worker in workers)
    assert len({(worker.job, worker.master) for worker in workers}) == 1
    assert workers[0].job.startswith("mpi-")
    assert text.count("nnodes=4, from OMPI_") == 4
    assert "node-rank=3, from OMPI_COMM_WORLD_RANK=3" in text


@pytest.mark.parametrize(
    ("start", "listed", "used"),
    [
        (NODES[0], NODES, NODES[:3]),
        ("login", NODES, NODES[:2]),
        long("login", NODES[::-1], NODES[:1:-1]),
        long(NODES[1], NODES[2:], NODES[2:]),
    ],
    ids=["own host and others", "two of four", "reversed", "only other hosts"],
)
def test_fewer_processes_than_hosts_form_one_job(
    mpi: Mpi, start: str, listed: list[str], used: list[str]
) -> None:
    """Rank 0 is correct even if mpirun runs on a host outside the job."""
    flags = ("-np", str(len(used)), "--host", slots(listed))
    text, code = relight(mpi, start, *flags)
    assert code == 0, text
    assert [worker.host for worker in seen(text)] == used, text
    assert {worker.world for worker in seen(text)} == {len(used)}


def test_one_process_per_host_with_many_slots_forms_one_job(mpi: Mpi) -> None:
    """The flag for this is --map-by ppr:1:node."""
    flags = ("--map-by", "ppr:1:node", "--host", slots(NODES[:3], 8))
    text, code = relight(mpi, "login", *flags)
    assert code == 0, text
    assert [worker.host for worker in seen(text)] == NODES[:3], text


def test_several_agents_per_host_are_rejected_with_a_hint(mpi: Mpi) -> None:
    """By default, mpirun starts one process per slot."""
    text, code = relight(mpi, "login", "-np", "4", "--host", slots(NODES[:2], 2))
    assert code == 2 and not seen(text), text
    assert "2 on this host (OMPI_COMM_WORLD_LOCAL_SIZE=2)" in text
    assert "mpirun --map-by ppr:1:node" in text


def test_nnodes_flag_allows_several_agents_per_host(mpi: Mpi) -> None:
    text, code = relight(mpi, "node1", "-np", "3", "--host", "node1:3", more=("--nnodes=3",))
    assert code == 0, text
    assert [(worker.rank, worker.world) for worker in seen(text)] == [(0, 3), (1, 3), (2, 3)]


def test_flags_override_mpirun_environment(mpi: Mpi) -> None:
    """A node range and an endpoint from the command line take precedence."""
    more = ("--nnodes=1:2", "--rdzv-conf=last_call_timeout=9")
    text, code = relight(mpi, "login", "--host", slots(NODES[:2]), more=more)
    assert code == 0, text
    assert [worker.world for worker in seen(text)] == [2, 2], text
    more = ("--rdzv-backend=c10d", f"--rdzv-endpoint={NODES[1]}:29411", "--rdzv-id=mine")
    text, code = relight(mpi, "login", "--host", slots(NODES[:2]), more=more)
    assert code == 0, text
    assert [(worker.world, worker.job) for worker in seen(text)] == [(2, "mine")] * 2, text
    assert f"rendezvous at {NODES[1]}:29411" in text


def test_mpirun_exits_with_job_exit_code(mpi: Mpi) -> None:
    flags = ("--host", slots(NODES[:2]))
    text, code = mpi.run("login", *flags, *RELIGHT_RUN, "--no-python", "sh", "-c", "exit 17")
    assert code == 17, text
