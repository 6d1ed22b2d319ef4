"""Absurd values in a cluster's variables are refused immediately, with a clear message."""

import pytest

from relight.base import hostlist
from relight.base.errors import UsageError
from relight.rendezvous.cluster_env import detect

LONG = "9" * 5000
STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "a,b",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_local_daemon_uri": "1.1;x",
}
RANKS = {"MASTER_ADDR": "h", "NNODES": "2", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    "variables",
    [
        {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x0)"},
        {**STEP, "SLURM_STEP_TASKS_PER_NODE": f"1(x{LONG})"},
        {**STEP, "SLURM_STEP_TASKS_PER_NODE": LONG},
        {**STEP, "SLURM_STEP_NUM_NODES": LONG},
        {**STEP, "SLURM_NODEID": LONG},
        {**STEP, "SLURM_STEP_NODELIST": f"n[1-{LONG}]"},
        {**STEP, "SLURM_STEP_NODELIST": f"n[{'1-65536,' * 10000}1]"},
        {**STEP, "SLURM_STEP_NODELIST": f"n[{'0' * 4000}1-65530]"},
        {**MPI, "OMPI_COMM_WORLD_SIZE": LONG},
        {**MPI, "OMPI_MCA_orte_node_regex": "n[999999999999:1-2]@0(2)"},
        {**MPI, "OMPI_MCA_orte_node_regex": "n[99999:1-60000]@0(2)"},
        {**MPI, "OMPI_MCA_orte_node_regex": f"n[1:{'1-65536,' * 10000}1]@0(2)"},
        {**MPI, "OMPI_MCA_orte_node_regex": "n[²:1-2]@0(2)"},
        {"JOB_COMPLETION_INDEX": LONG, "NNODES": "2"},
        {**RANKS, "MASTER_PORT": LONG},
        {**RANKS, "MASTER_ADDR": "/etc"},
        {**RANKS, "MASTER_ADDR": "h\nx"},
        {**RANKS, "MASTER_ADDR": "\udcff"},
    ],
)
def test_absurd_values_are_rejected_with_a_short_error(variables: dict[str, str]) -> None:
    """An impossible value is refused by one short line from relight."""
    with pytest.raises(UsageError) as caught:
        detect(variables, set(), "host")
    assert len(caught.value.message) < 400
    assert "int_max_str_digits" not in caught.value.message


@pytest.mark.parametrize("daemon", [f"1.{LONG};x", "1.²;x"])
def test_absurd_daemon_number_is_ignored(daemon: str) -> None:
    """An impossible daemon number is ignored, so rank 0's host is unknown."""
    found = detect({**MPI, "OMPI_MCA_orte_local_daemon_uri": daemon}, set(), "host")
    assert found.host is None


@pytest.mark.parametrize("step", [LONG, "²"])
def test_absurd_step_number_is_not_treated_as_an_srun_step(step: str) -> None:
    assert detect({**STEP, "SLURM_STEP_ID": step}, set(), "host").nnodes is None


def test_hostlist_is_limited_to_slurm_maximum_length() -> None:
    """The maximum number of hosts in Slurm is accepted, and one more is refused."""
    assert len(hostlist.expand(f"n[1-{hostlist.MAX_HOSTS}]")) == hostlist.MAX_HOSTS
    with pytest.raises(ValueError, match="more than 65536 hosts"):
        hostlist.expand(f"n[0-{hostlist.MAX_HOSTS}]")
