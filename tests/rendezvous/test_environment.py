"""A cluster's variables, and how they combine with flags.

The variables for Slurm and Open MPI are as set by real ones (tests/clusters runs them). Those for
Kubernetes are as set by its controllers, because no API server runs here.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base import hostlist
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import LaunchSpec, check
from relight.rendezvous.autodetect import take
from relight.rendezvous.cluster_env import detect

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_NUM_NODES": "8",
    "SLURM_NNODES": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-10]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "gpu09",
}
OMPI4 = {  # mpirun runs on one of the job's hosts
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_orte_num_nodes": "3",
    "OMPI_MCA_orte_hnp_uri": "134545408.0;tcp://10.77.0.2,172.17.0.1:48835;tcp6://[fd77::2]:39421",
    "OMPI_MCA_orte_local_daemon_uri": "134545408.2;tcp://10.77.0.4:33001",
    "OMPI_MCA_orte_node_regex": "node[1:1-4]@0(4)",
    "PMIX_NAMESPACE": "134545409",
    "PMIX_RANK": "2",
}
OMPI5 = {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "prterun-gpu-01-14202@1",
    "PMIX_RANK": "2",
    "PMIX_SERVER_URI4": "prterun-gpu-01-14202@0.2;tcp4://127.0.0.1:38949",
}
OF_ONE_NODE = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
INDEXED = {"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
RANKS = {"MASTER_ADDR": "head", "MASTER_PORT": "23456", "WORLD_SIZE": "4", "RANK": "1"}
PYTORCHJOB = {**RANKS, "MASTER_ADDR": "train-master-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
PYTORCHJOB_PET = {
    **PYTORCHJOB,
    "WORLD_SIZE": "32",
    "PET_NNODES": "4",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "train-master-0",
    "PET_MASTER_PORT": "23456",
}
ELASTIC_PYTORCHJOB = {
    "PET_NNODES": "1:3",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "train-worker-0:23456",
    "PET_RDZV_ID": "train",
}
TRAINJOB = {
    **INDEXED,
    "PET_NNODES": "4",
    "PET_NODE_RANK": "3",
    "PET_NPROC_PER_NODE": "auto",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29400",
}


def resolve(variables: dict[str, str], *flags: str) -> tuple[LaunchSpec, list[str]]:
    """Return what `relight run FLAGS train.py` requests in an environment, and its notes."""
    env = Environment(variables)
    parsed = parse([*flags, "train.py"], env)
    spec, names, notes = take(to_spec(parsed), parsed.given, env)
    return spec, notes + check(spec, names)


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this host a pod in an Indexed Job with a headless Service."""
    fqdn = "train-3.train.team.svc.cluster.local"
    monkeypatch.setattr("socket.getfqdn", lambda: fqdn)
    monkeypatch.setattr("socket.gethostname", lambda: "train-3")


def without(variables: dict[str, str], *names: str) -> dict[str, str]:
    return {k: v for k, v in variables.items() if k not in names}


@pytest.mark.parametrize(
    ("variables", "nodes", "rank", "place", "job"),
    [
        (STEP, 4, 2, "gpu07", "slurm-12-3"),
        ({**STEP, "SLURM_RESTART_COUNT": "2"}, 4, 2, "gpu07", "slurm-12-3-2"),
        ({**STEP, "SLURM_RESTART_COUNT": "0"}, 4, 2, "gpu07", "slurm-12-3"),
        (without(STEP, "SLURMD_NODENAME", "SLURM_NNODES"), 4, 2, "gpu07", "slurm-12-3"),
        (OMPI4, 3, 2, "node1", "mpi-134545409"),
        ({**OMPI4, "OMPI_MCA_orte_local_daemon_uri": "7.3;tcp://x:1",
          "OMPI_MCA_orte_node_regex": "login,node[1:1-4]@0(5)"}, 3, 2, "node1", "mpi-134545409"),
        (without(OMPI4, "OMPI_MCA_orte_node_regex"), 3, 2, "10.77.0.2", "mpi-134545409"),
        (OMPI5, 3, 2, "gpu-01", "mpi-prterun-gpu-01-14202@1"),
        (PYTORCHJOB, 4, 1, "train-master-0:23456", "none"),
        (PYTORCHJOB_PET, 4, 1, "train-master-0:23456", "none"),
        (TRAINJOB, 4, 3, "train-node-0-0.train:29400", "none"),
        ({**INDEXED, "PET_NNODES": "4"}, 4, 3, "train-0.train.team.svc.cluster.local", "k8s-train"),
        ({**INDEXED, "NNODES": "4"}, 4, 3, "train-0.train.team.svc.cluster.local", "k8s-train"),
        ({**INDEXED, **RANKS}, 4, 1, "head:23456", "k8s-train"),
        (RANKS, 4, 1, "head:23456", "none"),
        ({"MASTER_ADDR": "head", "NNODES": "2", "NODE_RANK": "1"}, 2, 1, "head", "none"),
        ({**RANKS, "WORLD_SIZE": "8", "NNODES": "2"}, 2, 1, "head:23456", "none"),
        ({**STEP, **RANKS}, 4, 2, "gpu07", "slurm-12-3"),
        ({**STEP, "OMPI_MCA_x": "", **OMPI4}, 3, 2, "node1", "mpi-134545409"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_job_without_flags_uses_cluster_environment(
    variables: dict[str, str], nodes: int, rank: int, place: str, job: str
) -> None:
    """The environment provides the nodes, this node's rank, the endpoint, and the job id."""
    spec, _ = resolve(variables)
    host, _, port = place.partition(":")
    assert (spec.nnodes.min_nodes, spec.nnodes.max_nodes) == (nodes, nodes)
    assert (spec.rdzv_backend, spec.node_rank, spec.master_addr) == ("static", rank, host)
    assert spec.rdzv_id == job
    if port:
        assert spec.master_port == int(port)
    elif job != "none":
        assert spec.master_port is not None and 20000 <= spec.master_port < 30000


@pytest.mark.parametrize(
    ("variables", "flags", "expected"),
    [
        (STEP, "--nnodes=2:4", "nnodes=2:4 backend=c10d endpoint=gpu07 is_host=0 id=slurm-12-3"),
        ({**STEP, "SLURM_NODEID": "0", "SLURMD_NODENAME": "gpu07"}, "--nnodes=2:4", "is_host=1"),
        ({**STEP, "SLURM_NODEID": "0", "SLURMD_NODENAME": "gpu07"},
         "--nnodes=2:4 --rdzv-conf=is_host=0", "is_host=0"),
        (STEP, "--nnodes=2:4 --master-port=31000", "endpoint=gpu07:31000"),
        (STEP, "--nnodes=8", "nnodes=8:8 backend=c10d endpoint=gpu07 is_host=0 id=slurm-12-3"),
        (STEP, "--rank-order=topology", "nnodes=4:4 backend=c10d endpoint=gpu07 is_host=0"),
        (STEP, "--nnodes=1", "nnodes=1:1 backend=static addr=127.0.0.1 rank=0 id=none"),
        (STEP, "--standalone", "nnodes=1:1 id=none"),
        (STEP, "--rdzv-backend=c10d", "nnodes=4:4 backend=c10d endpoint=gpu07 id=slurm-12-3"),
        (STEP, "--rdzv-backend=c10d --rdzv-endpoint=x:1", "nnodes=4:4 endpoint=x:1 id=slurm-12-3"),
        (STEP, "--rdzv-backend=etcd --rdzv-endpoint=x:1", "nnodes=4:4 backend=etcd endpoint=x:1"),
        (STEP, "--nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=x:1", "endpoint=x:1 id=none"),
        (STEP, "--nnodes=4 --master-addr=x", "backend=static addr=x rank=2 endpoint="),
        (STEP, "--nnodes=4 --master-addr=x --node-rank=1", "addr=x rank=1 id=none"),
        (STEP, "--nnodes=9 --master-addr=x", "nnodes=9:9 addr=x rank=0"),
        (STEP, "--master-port=31000 --rdzv-id=mine", "addr=gpu07 port=31000 rank=2 id=mine"),
        (STEP, "--node-rank=3", "backend=static addr=gpu07 rank=3"),
        ({**STEP, "PET_NNODES": "2"}, "", "nnodes=2:2 backend=c10d endpoint=gpu07"),
        (OMPI5, "--nnodes=2:3", "nnodes=2:3 backend=c10d endpoint=gpu-01 is_host=0"),
        ({**OMPI5, "PMIX_SERVER_URI4": "a@0.9;x"},
         "--rdzv-backend=c10d --rdzv-endpoint=x:1", "nnodes=3:3 endpoint=x:1"),
        (INDEXED, "--nnodes=4", "nnodes=4:4 rank=3 addr=train-0.train.team.svc.cluster.local"),
        (INDEXED, "--nnodes=2:4", "backend=c10d is_host=0"),
        (ELASTIC_PYTORCHJOB, "", "nnodes=1:3 backend=c10d endpoint=train-worker-0:23456 id=train"),
        ({**PYTORCHJOB, **ELASTIC_PYTORCHJOB}, "", "endpoint=train-worker-0:23456 id=train rank=0"),
        (INDEXED, "--nnodes=1", "nnodes=1:1 addr=127.0.0.1 rank=0"),
        (RANKS, "--nnodes=1", "nnodes=1:1 addr=127.0.0.1 rank=0"),
        (RANKS, "--standalone", "nnodes=1:1 addr=127.0.0.1"),
        ({**RANKS, "MASTER_ADDR": "localhost"}, "--nnodes=4", "addr=localhost rank=1"),
    ],
)  # fmt: skip
def test_flags_take_precedence_over_cluster_environment(
    variables: dict[str, str], flags: str, expected: str
) -> None:
    """The user's settings, even in a PET_ variable, are kept; the rest comes from the cluster."""
    spec, _ = resolve(variables, *flags.split())
    endpoint = spec.rdzv_endpoint
    at = endpoint.host if endpoint.port is None else f"{endpoint.host}:{endpoint.port}"
    found = {
        "nnodes": f"{spec.nnodes.min_nodes}:{spec.nnodes.max_nodes}",
        "backend": spec.rdzv_backend,
        "endpoint": at,
        "addr": spec.master_addr,
        "port": str(spec.master_port),
        "rank": str(spec.node_rank),
        "id": spec.rdzv_id,
        "is_host": dict(spec.rdzv_conf).get("is_host", ""),
    }
    for name, value in (pair.split("=", 1) for pair in expected.split()):
        port = ":" in value or name != "endpoint"
        assert (found[name] if port else found[name].partition(":")[0]) == value, name


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({}, ""),
        ({**STEP, "TORCHELASTIC_RUN_ID": "x"}, ""),
        ({**RANKS, "TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0"}, ""),
        ({**OMPI4, "TORCHELASTIC_RUN_ID": "x"}, ""),
        ({**RANKS, "LOCAL_RANK": "0"}, "LOCAL_RANK"),
        ({**RANKS, "MASTER_ADDR": "localhost"},
         "ignoring WORLD_SIZE=4 and RANK=1, because MASTER_ADDR=localhost is this machine"),
        ({**RANKS, "MASTER_ADDR": "127.0.1.1"}, "because MASTER_ADDR=127.0.1.1 is this machine"),
        ({**RANKS, "MASTER_ADDR": "localhost", "RANK": "4"}, "ignoring WORLD_SIZE=4 and RANK=4"),
        ({**RANKS, "MASTER_ADDR": "localhost", "RANK": "x"}, "ignoring WORLD_SIZE=4 and RANK=x"),
        ({**RANKS, "MASTER_ADDR": "localhost", "NNODES": "3"}, "ignoring NNODES=3 and RANK=1"),
        ({**RANKS, "MASTER_ADDR": "localhost", "WORLD_SIZE": "1"}, ""),
        ({**RANKS, "WORLD_SIZE": "1", "RANK": "0"}, ""),
        (without(RANKS, "WORLD_SIZE"), ""),
        (without(RANKS, "MASTER_ADDR"), ""),
        (without(RANKS, "RANK"), ""),
        ({"RANK": "x", "WORLD_SIZE": "-"}, ""),
        (without(STEP, "SLURM_STEP_ID"), "SLURM_JOB_NUM_NODES=8, but this was not started by srun"),
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, "this was not started by srun"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, ""),
        ({**STEP, "SLURMD_NODENAME": "cpu1", "SLURM_JOB_NODELIST": "cpu[1-8]"},
         "ignoring SLURM_STEP_ID=3, because SLURM_STEP_NODELIST=gpu[07-10] does not contain "
         "this node, cpu1"),
        ({**STEP, "SLURM_NNODES": "8", "SLURM_JOB_NODELIST": "gpu[09-16]"},
         "SLURM_STEP_NODELIST=gpu[07-10] is not part of SLURM_JOB_NODELIST=gpu[09-16]"),
        ({**STEP, **dict.fromkeys(OF_ONE_NODE, "1"), "SLURM_STEP_NODELIST": "gpu09",
          "SLURM_NODEID": "0"}, ""),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, "the number of processes is not"),
        (INDEXED, "the number of nodes is not set"),
        ({**OMPI4, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0",
          "OMPI_MCA_orte_num_nodes": "1"}, ""),
    ],
)  # fmt: skip
def test_single_node_cluster_environment_has_no_effect(
    variables: dict[str, str], note: str
) -> None:
    """A single-node job, a worker's environment, and an incomplete environment have no effect."""
    plain, before = resolve({})
    spec, notes = resolve(variables)
    assert spec == plain
    assert notes == before if not note else note in notes[0]


def test_single_node_srun_steps_with_ranks_form_one_job() -> None:
    """`srun -N1` for each node, with RANK and WORLD_SIZE, forms one job."""
    one = {**STEP, **dict.fromkeys((*OF_ONE_NODE, "SLURM_NNODES"), "1"), "SLURM_NODEID": "0"}
    one["SLURM_STEP_NODELIST"] = "gpu09"
    assert resolve(one)[0].nnodes.max_nodes == 1
    spec, _ = resolve({**one, **RANKS})
    assert (spec.nnodes.max_nodes, spec.node_rank, spec.master_addr) == (4, 1, "head")


@pytest.mark.parametrize(
    ("variables", "flags", "message"),
    [
        ({**STEP, "SLURM_STEP_NODELIST": "gpu[07-09]"}, "",
         "SLURM_STEP_NUM_NODES=4 contradicts SLURM_STEP_NODELIST=gpu[07-09]"),
        ({**STEP, "SLURM_STEP_NODELIST": "gpu[07-"}, "", "SLURM_STEP_NODELIST"),
        ({**STEP, "SLURM_NODEID": "4"}, "", "SLURM_NODEID=4 is not below SLURM_STEP_NUM_NODES=4"),
        ({**STEP, "SLURM_NODEID": "one"}, "", "SLURM_NODEID=one: expected a whole number"),
        (without(STEP, "SLURM_NODEID"), "", "SLURM_NODEID is not set"),
        ({**STEP, "SLURM_NNODES": "8"}, "", "SLURM_STEP_NUM_NODES=4 contradicts SLURM_NNODES=8"),
        ({**STEP, "MASTER_ADDR": "x", "NNODES": "8", "NODE_RANK": "2"}, "",
         "SLURM_STEP_NUM_NODES=4 contradicts NNODES=8"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, "",
         "Slurm started relight 32 times, 8 on this host (SLURM_STEP_TASKS_PER_NODE=8(x4))"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2,1(x3)"}, "",
         "Slurm started relight 5 times on 4 nodes (SLURM_STEP_NUM_TASKS=5)"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, "--nnodes=4",
         "Slurm started relight 32 times"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"},
         "--nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=gpu07:29400 --rdzv-id=x",
         "Slurm started relight 32 times"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"},
         "--nnodes=2:4 --rdzv-backend=etcd --rdzv-endpoint=x:1", "Slurm started relight 32 times"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"},
         "--nnodes=4 --master-addr=gpu07 --node-rank=2", "Slurm started relight 32 times"),
        ({**OMPI5, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "",
         "Open MPI started relight 3 times, 3 on this host (OMPI_COMM_WORLD_LOCAL_SIZE=3)"),
        ({**OMPI4, "OMPI_MCA_orte_num_nodes": "2"}, "",
         "Open MPI started relight 3 times on 2 nodes (OMPI_COMM_WORLD_SIZE=3)"),
        ({**OMPI4, "OMPI_MCA_orte_num_nodes": "4"}, "", "contradicts OMPI_COMM_WORLD_SIZE=3"),
        ({**OMPI4, "OMPI_COMM_WORLD_RANK": "3"}, "", "is not below OMPI_COMM_WORLD_SIZE=3"),
        ({**OMPI4, "OMPI_MCA_orte_node_regex": "node[1-4]"}, "", "OMPI_MCA_orte_node_regex"),
        ({**OMPI5, "PMIX_SERVER_URI4": "prterun-login-7@0.3;x"}, "", "does not tell which host"),
        ({**RANKS, "RANK": "4"}, "", "RANK=4 is not below WORLD_SIZE=4"),
        ({**RANKS, "RANK": ""}, "", "RANK is not set"),
        ({**RANKS, "WORLD_SIZE": "0"}, "", "WORLD_SIZE=0: expected a whole number, at least 1"),
        ({**RANKS, "NNODES": "3"}, "", "NNODES=3 contradicts WORLD_SIZE=4"),
        ({**RANKS, "MASTER_PORT": "http"}, "", "MASTER_PORT=http: 'http' is not a port number"),
        ({**PYTORCHJOB, "MASTER_ADDR": "localhost"}, "", "each pod has its own address"),
        ({**PYTORCHJOB, "MASTER_ADDR": "127.0.1.1"}, "", "each pod has its own address"),
        ({**INDEXED, "JOB_COMPLETION_INDEX": "2"}, "--nnodes=4", "does not end with -2"),
        ({**INDEXED, "NNODES": "2"}, "", "JOB_COMPLETION_INDEX=3 is not below NNODES=2"),
    ],
)  # fmt: skip
def test_contradictory_cluster_variables_are_an_error(
    variables: dict[str, str], flags: str, message: str
) -> None:
    """Contradictory or impossible variables are reported by name."""
    with pytest.raises(UsageError) as caught:
        resolve(variables, *flags.split())
    assert message in caught.value.message


def test_one_agent_per_gpu_error_shows_command_for_one_per_node() -> None:
    for variables, remedy in (
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"},
         "srun --ntasks-per-node=1 relight run"),
        ({**OMPI5, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
         "mpirun --map-by ppr:1:node --bind-to none relight run"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            resolve(variables)
        assert remedy in caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        "--standalone",
        "--nnodes=1",
        "--nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=x:1",
        "--nnodes=4 --master-addr=x --node-rank=1",
    ],
)
def test_invalid_cluster_environment_is_ignored_if_flags_suffice(flags: str) -> None:
    broken = {**STEP, "SLURM_NODEID": "nonsense"}
    spec, _ = resolve(broken, *flags.split())
    plain, _ = resolve({}, *flags.split())
    assert spec == plain


def test_names_variables_that_identify_no_cluster() -> None:
    """The user can tell whether they are stray, and how to ignore them."""
    _, notes = resolve(RANKS)
    names = "WORLD_SIZE=4, RANK=1, MASTER_ADDR=head"
    assert notes[0] == f"4 nodes according to {names}; --standalone ignores them"
    _, notes = resolve(RANKS, "--nnodes=4")
    assert notes[0] == "rendezvous according to RANK=1, MASTER_ADDR=head"


def test_localhost_as_master_addr_is_replaced_by_hostname() -> None:
    """Other nodes reach a master at its own name if MASTER_ADDR is `localhost`."""
    variables = {**PYTORCHJOB, "MASTER_ADDR": "localhost", "RANK": "0"}
    assert resolve(variables)[0].master_addr == "train-3"
    outside = without(variables, "KUBERNETES_SERVICE_HOST")
    assert resolve(outside, "--nnodes=4")[0].master_addr == "localhost"


def test_pod_without_dns_domain_reports_missing_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Service, other pods can't be found."""
    monkeypatch.setattr("socket.getfqdn", lambda: "train-3")
    spec, notes = resolve(INDEXED, "--nnodes=4")
    assert spec.master_addr == "train-0"
    assert any("headless Service" in note for note in notes)


def test_verbose_flag_shows_source_of_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-v prints a line for each value, including values from flags and PET_ variables."""
    monkeypatch.setenv("HOME", str(tmp_path))  # a token there would add a line
    _, notes = resolve({**STEP, "PET_NNODES": "2:4"}, "-v", "--rdzv-id=mine")
    lines = [note for note in notes if ", from " in note]
    assert lines == [
        "nnodes=2:4, from PET_NNODES=2:4",
        "rdzv-id=mine, from the command line",
        "rdzv-endpoint=gpu07:28937, from SLURM_STEP_NODELIST=gpu[07-10], the job's id slurm-12-3",
        "rdzv-conf=is_host=0, from SLURM_NODEID=2",
        "rdzv-backend=c10d, from Slurm",
    ]
    _, notes = resolve({**STEP, "PET_NNODES": "3"}, "-v", "--nnodes=2")
    assert "nnodes=2, from the command line" in notes


def test_note_says_that_environment_determines_job_size() -> None:
    """Even without -v, one line shows that the job is larger than the command line suggests."""
    _, notes = resolve(STEP)
    assert notes[0] == "4 nodes according to Slurm (-v shows the variables used)"
    _, notes = resolve(STEP, "--nnodes=8")
    assert "--nnodes=8 overrides SLURM_STEP_NUM_TASKS=4" in notes


def test_workers_are_not_counted_as_nodes() -> None:
    """PET_NNODES does not conflict with the WORLD_SIZE of an operator that counts workers."""
    _, notes = resolve(PYTORCHJOB_PET)
    assert not any("overrides" in note for note in notes)


def test_default_port_depends_only_on_the_job() -> None:
    ports = {}
    for job in range(100):
        variables = {**STEP, "SLURM_JOB_ID": str(job)}
        nodes = [{**variables, "SLURM_NODEID": str(n), "SLURMD_NODENAME": f"gpu{n + 7:02}"}
                 for n in range(4)]  # fmt: skip
        found = {resolve(node)[0].master_port for node in nodes}
        assert len(found) == 1
        ports[job] = found.pop()
    assert len(set(ports.values())) > 95


@given(
    st.dictionaries(
        st.sampled_from(sorted({*STEP, *OMPI4, *OMPI5, *TRAINJOB, *RANKS, "NNODES", "NODE_RANK"})),
        st.one_of(st.sampled_from(["0", "1", "4", "a[1-4]", "1(x4)", ""]), st.text(max_size=8)),
    )
)
def test_arbitrary_environment_gives_launch_spec_or_usage_error(variables: dict[str, str]) -> None:
    """Any variables result in a launch spec or a user error."""
    try:
        detect(variables, set(), "node1")
    except UsageError as error:
        assert "\n" not in error.message or any("\n" in value for value in variables.values())


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3,07]", ["node1", "node2", "node3", "node07"]),
        ("a[08-11]x,a2", ["a08x", "a09x", "a10x", "a11x", "a2"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("gpu-a100-[9-11],login", ["gpu-a100-9", "gpu-a100-10", "gpu-a100-11", "login"]),
    ],
)
def test_slurm_hostlists_are_expanded(text: str, hosts: list[str]) -> None:
    assert hostlist.expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,",
        "a,,b",
        "a[",
        "a]",
        "a[]",
        "a[1-]",
        "a[2-1]",
        "a[1",
        "a[b]",
        "a b",
        "a[1-99999999999]",
        "a[0-999]b[0-999]",
        "a[1[2]]",
    ],
)
def test_malformed_hostlist_is_rejected(text: str) -> None:
    """Anything but a host list of reasonable length is refused immediately."""
    with pytest.raises(ValueError):
        hostlist.expand(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[1:1-4]@0(4)", ["node1", "node2", "node3", "node4"]),
        ("node[1:1,3,2]@0(3)", ["node1", "node3", "node2"]),
        ("login,node[2:8-10]@0(4)", ["login", "node08", "node09", "node10"]),
        ("gpu-a[3:100]-07,gpu-b@0(2)", ["gpu-a100-07", "gpu-b"]),
    ],
)
def test_open_mpi_hostlists_are_expanded(text: str, hosts: list[str]) -> None:
    assert hostlist.expand_orte(text) == hosts


@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=1, max_size=9))
def test_hostnames_without_brackets_are_left_unchanged(names: Iterable[str]) -> None:
    names = list(names)
    assert hostlist.expand(",".join(names)) == names
