"""Reads the job's nodes and this node's rank from a cluster's environment variables.

`autodetect` turns them into flags.

Open MPI (4.1 and 5.0, mpirun)
    OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_SIZE   the processes, this one, those on this host
    OMPI_MCA_orte_num_nodes                    4: hosts of the job
    OMPI_MCA_orte_hnp_uri, _local_daemon_uri   4: `JOBID.VPID;tcp://ADDRESSES:PORT` of mpirun and of
                                               the daemon of this host
    OMPI_MCA_orte_node_regex                   4: hosts by VPID; not on the host of mpirun
    PMIX_NAMESPACE                             the job; 5: `prterun-HOST_OF_MPIRUN-PID@1`
    PMIX_SERVER_URI4                           5: `NAMESPACE.VPID;…` of the daemon of this host
  Daemons are numbered from mpirun's host, even if it is not part of the job; processes are numbered
  from the job's first host. The VPID of a host minus the rank of its only process is therefore the
  VPID of rank 0's host. Bare PMIx (PMIX_RANK, PMIX_NAMESPACE) is not enough, because it does not
  include the number of processes.

Slurm (22.05; srun(1), "OUTPUT ENVIRONMENT VARIABLES")
    SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT        the job, the step, how often requeued
    SLURM_STEP_NUM_NODES, _NODELIST, _NUM_TASKS, _TASKS_PER_NODE    of the step
    SLURM_NODEID, SLURM_PROCID, SLURM_LOCALID               of this task
    SLURMD_NODENAME, SLURM_NNODES                           its node; the nodes of the step
  Batch scripts and salloc shells are not steps. They run on only one node, regardless of
  SLURM_JOB_NUM_NODES. sbatch passes on the variables of the step that called it. Variables from a
  step whose hosts are not the job's hosts are ignored.

Kubernetes
    JOB_COMPLETION_INDEX     Indexed Job, and so JobSet and TrainJob: the index of this pod, whose
                             host name is NAME-INDEX. Kubernetes does not set a variable with the
                             number of pods, which comes from --nnodes, PET_NNODES, NNODES, or
                             WORLD_SIZE if MASTER_ADDR is set.
    PET_…                    TrainJob and PyTorchJob (Kubeflow): treated as flags, as in torchrun
    MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE    PyTorchJob: RANK of the pod, master first;
                             WORLD_SIZE counts pods, or workers if PET_NNODES is set. Old operators
                             set MASTER_ADDR to `localhost` on the master itself.

Anything else
    MASTER_ADDR, MASTER_PORT, WORLD_SIZE or NNODES, RANK or NODE_RANK or GROUP_RANK
  These variables are used only if an address, a size above 1 and a rank are all set, and if neither
  LOCAL_RANK nor LOCAL_WORLD_SIZE is set, because those two describe a worker. The address must not
  be `localhost`, which tutorials set for processes on one machine. torchrun does not read these
  variables, and they are often still set in a shell.

No variables are read inside a worker of torchrun or relight (TORCHELASTIC_RUN_ID), or with
--standalone.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

from relight.base import hostlist
from relight.base.errors import UsageError
from relight.base.values import parse_host, parse_port, whole
from relight.flags.spec import LOCAL_HOSTS
from relight.net.ports import is_loopback

_FIRST_PORT, _PORTS = 20000, 10000
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""The first of the step ids that identify batch scripts and salloc shells rather than srun
steps.
"""


class Number(NamedTuple):
    """A number and its source, such as `SLURM_NODEID=1`."""

    value: int
    source: str


class Text(NamedTuple):
    """A string and its source."""

    value: str
    source: str


class FoundFlags(NamedTuple):
    """Settings for this node and its job that were found in the environment. None means unknown.

    The `agents` field is the number of launcher processes, including this one, and `here` is the
    number of those on this host. The `host` field is node 0's host, and `hosts` says whether this
    process is node 0. The `no_host` field explains why `host` is unknown. The `remedy` field is a
    command that starts one process per node.
    """

    system: str = ""
    nnodes: Number | None = None
    node_rank: Number | None = None
    host: Text | None = None
    port: Number | None = None
    job: Text | None = None
    agents: Number | None = None
    here: Number | None = None
    hosts: bool = False
    no_host: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()


NOTHING = FoundFlags()
ANY_SYSTEM = "the environment"
"""The `system` if the variables don't identify it."""


def detect(variables: Mapping[str, str], given: set[str], hostname: str) -> FoundFlags:
    """Return the settings found in the environment.

    Args:
        variables: the environment.
        given: the flags that the user set, which resolve ambiguous variables.
        hostname: this host's name; in a pod, including its domain.

    Raises:
        UsageError: if variables contradict each other or have an invalid value.
    """
    if "TORCHELASTIC_RUN_ID" in variables:
        return NOTHING
    if "OMPI_COMM_WORLD_SIZE" in variables:
        found = _open_mpi(variables, hostname)
    elif "SLURM_JOB_ID" in variables:
        found = _slurm(variables, given)
    elif "PMIX_RANK" in variables and "nnodes" not in given:
        found = FoundFlags(
            notes=("PMIX_RANK is set, but the number of processes is not; using one node",)
        )
    else:
        return _ranks(variables, given, hostname)
    if found.agents is None or found.agents.value == 1:
        ranks = _ranks(variables, given, hostname)
        return found if ranks.nnodes is None else ranks
    assert found.nnodes is not None
    _check_rank(found.node_rank, found.agents or found.nnodes)
    if "nnodes" not in given and {"MASTER_ADDR", "NNODES", "NODE_RANK"} <= variables.keys():
        nodes = _number(variables, "NNODES")
        if nodes.value != found.nnodes.value:
            raise _contradiction(found.nnodes, nodes)
    if found.job is not None and found.port is None:
        found = found._replace(port=_job_port(found.job))
    return found


# The supported systems.


def _open_mpi(variables: Mapping[str, str], hostname: str) -> FoundFlags:
    size = _number(variables, "OMPI_COMM_WORLD_SIZE", least=1)
    rank = _number(variables, "OMPI_COMM_WORLD_RANK")
    here = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
    nnodes = size
    if "OMPI_MCA_orte_num_nodes" in variables:
        nnodes = _number(variables, "OMPI_MCA_orte_num_nodes", least=1)
        if nnodes.value > size.value:
            raise _contradiction(nnodes, size)
    host, no_host = _mpi_first_host(variables, rank.value, here.value, hostname)
    name = "PMIX_NAMESPACE" if "PMIX_NAMESPACE" in variables else "OMPI_MCA_ess_base_jobid"
    return FoundFlags(
        system="Open MPI",
        nnodes=nnodes,
        node_rank=rank,
        host=host,
        job=_text(variables, name, "mpi-") if name in variables else None,
        agents=size,
        here=here,
        hosts=rank.value == 0,
        no_host=no_host,
        remedy="mpirun --map-by ppr:1:node --bind-to none",
    )


def _mpi_first_host(
    variables: Mapping[str, str], rank: int, here: int, hostname: str
) -> tuple[Text | None, str]:
    daemon = variables.get("OMPI_MCA_orte_local_daemon_uri") or variables.get("PMIX_SERVER_URI4")
    vpid = (daemon or "").partition(";")[0].rpartition(".")[2]
    if vpid == "0" and here > 1:  # if mpirun's own host is in the job, it is first
        return Text(hostname, daemon or ""), ""
    if here > 1:
        return (
            None,
            "with several processes per host, Open MPI does not tell which host runs its rank 0",
        )
    daemon_number = whole(vpid)
    first = -1 if daemon_number is None else daemon_number - rank
    regex = variables.get("OMPI_MCA_orte_node_regex")
    if regex and first >= 0:
        try:
            hosts = hostlist.expand_orte(regex)
        except ValueError as error:
            raise UsageError(f"OMPI_MCA_orte_node_regex={regex:.80}: {error}") from None
        if first < len(hosts):
            return Text(hosts[first], f"OMPI_MCA_orte_node_regex={regex}"), ""
    if rank == 0:
        return Text(hostname, "OMPI_COMM_WORLD_RANK=0"), ""
    space = variables.get("PMIX_NAMESPACE", "")
    if first == 0 and space.startswith("prterun-"):
        host = space.removeprefix("prterun-").rpartition("-")[0]
        if host:
            return Text(host, f"PMIX_NAMESPACE={space}"), ""
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    if first == 0 and "tcp://" in uri:
        address = uri.partition("tcp://")[2].partition(":")[0].partition(",")[0]
        return Text(address, f"OMPI_MCA_orte_hnp_uri={uri}"), ""
    return (
        None,
        "Open MPI does not tell which host runs its rank 0, unless mpirun runs on that host",
    )


def _slurm(variables: Mapping[str, str], given: set[str]) -> FoundFlags:
    step = variables.get("SLURM_STEP_ID", "")
    count = variables.get("SLURM_JOB_NUM_NODES", "1")
    number = whole(step)
    if number is None or number >= _FIRST_SPECIAL_STEP:
        note = (
            f"SLURM_JOB_NUM_NODES={count}, but this was not started by srun; running a "
            "single-node job"
        )
        return FoundFlags(notes=(note,) if count != "1" and "nnodes" not in given else ())
    if foreign := _left_over(variables):
        note = (
            f"ignoring SLURM_STEP_ID={step}, {foreign}; it is left over from the step that "
            "called sbatch"
        )
        found = _slurm({**variables, "SLURM_STEP_ID": ""}, given)
        return found._replace(notes=(note, *found.notes))
    nnodes = _number(variables, "SLURM_STEP_NUM_NODES", least=1)
    agents = _number(variables, "SLURM_STEP_NUM_TASKS", least=1)
    if nnodes.value > 1:
        _check_step(variables, nnodes)
    listed = variables.get("SLURM_STEP_NODELIST", "")
    if not listed:
        raise UsageError("SLURM_STEP_NODELIST is not set")
    try:
        hosts = hostlist.expand(listed)
        tasks = hostlist.expand_tasks(variables.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    except ValueError as error:
        raise UsageError(f"SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE: {error}") from None
    if len(hosts) != nnodes.value:
        many_hosts = Number(len(hosts), f"SLURM_STEP_NODELIST={listed}")
        raise _contradiction(nnodes, many_hosts)
    node = _number(variables, "SLURM_NODEID")
    _check_rank(node, nnodes)
    here = tasks[min(node.value, len(tasks) - 1)]
    job = f"slurm-{variables['SLURM_JOB_ID']}-{step}"
    sources = f"SLURM_JOB_ID={variables['SLURM_JOB_ID']}, SLURM_STEP_ID={step}"
    if variables.get("SLURM_RESTART_COUNT", "0") != "0":
        job += f"-{variables['SLURM_RESTART_COUNT']}"
        sources += f", SLURM_RESTART_COUNT={variables['SLURM_RESTART_COUNT']}"
    several = agents.value > nnodes.value
    return FoundFlags(
        system="Slurm",
        nnodes=nnodes,
        node_rank=_number(variables, "SLURM_PROCID") if several else node,
        host=Text(hosts[0], f"SLURM_STEP_NODELIST={listed}"),
        job=Text(job, sources),
        agents=agents,
        here=Number(here, f"SLURM_STEP_TASKS_PER_NODE={variables.get('SLURM_STEP_TASKS_PER_NODE')}")
        if several
        else None,
        hosts=node.value == 0 and variables.get("SLURM_LOCALID", "0") == "0",
        remedy="srun --ntasks-per-node=1",
    )


def _left_over(variables: Mapping[str, str]) -> str:
    """Explain why the Slurm step's variables belong to a different job, or return an empty string
    if they don't. The variables belong to a different job if the step's hosts include hosts outside
    this job, or don't include this host. sbatch passes such variables on to its script, although
    the script is not a step.
    """
    name, job = variables.get("SLURMD_NODENAME", ""), variables.get("SLURM_JOB_NODELIST", "")
    listed = variables.get("SLURM_STEP_NODELIST", "")
    if "SLURM_HET_SIZE" in variables:
        job = ""  # the job has several such lists
    try:
        hosts = set(hostlist.expand(listed))
        others = hosts - set(hostlist.expand(job)) if job else set()
    except ValueError:
        return ""
    if name and name not in hosts:
        return f"because SLURM_STEP_NODELIST={listed} does not contain this node, {name}"
    return (
        f"because SLURM_STEP_NODELIST={listed} is not part of SLURM_JOB_NODELIST={job}"
        if others
        else ""
    )


def _check_step(variables: Mapping[str, str], nnodes: Number) -> None:
    """Reject node counts that contradict each other. The reason is either that they come from two
    jobs that both include all of the step's hosts, or that srun was called with --preserve-env.
    """
    nodes = variables.get("SLURM_NNODES", str(nnodes.value))
    if nodes != str(nnodes.value):
        raise UsageError(
            f"{nnodes.source} contradicts SLURM_NNODES={nodes}; it may be left over from the step "
            "that called sbatch",
            hint=(
                "in a batch script, unset SLURM_STEP_ID or use --standalone; srun without "
                "--preserve-env sets both"
            ),
        )


def _ranks(variables: Mapping[str, str], given: set[str], hostname: str) -> FoundFlags:
    """Return the settings from Kubernetes' variables, and from other variables that contain node
    ranks.
    """
    index = variables.get("JOB_COMPLETION_INDEX")
    address = variables.get("MASTER_ADDR", "")
    rank_name = _first_set(variables, "NODE_RANK", "GROUP_RANK", "RANK")
    size_name = _first_set(variables, "NNODES", "WORLD_SIZE" if address else "NNODES")
    if index is None and not (address and rank_name and size_name):
        return NOTHING
    if {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & variables.keys():
        note = "ignoring RANK and WORLD_SIZE, because LOCAL_RANK is set, so they belong to a worker"
        return FoundFlags(notes=() if "nnodes" in given else (note,))
    in_pod = index is not None or "KUBERNETES_SERVICE_HOST" in variables
    if _is_local(address) and not in_pod and "nnodes" not in given:
        size = variables[size_name]
        note = (
            f"ignoring {size_name}={size:.80} and {rank_name}={variables[rank_name]:.80}, because "
            f"MASTER_ADDR={address} is this machine; using one node (--nnodes uses them)"
        )
        return NOTHING if size == "1" else FoundFlags(notes=(note,))
    rank = _number(variables, rank_name or "JOB_COMPLETION_INDEX")
    # If --nnodes or PET_NNODES is also set, WORLD_SIZE may count workers.
    nnodes: Number | None = None
    if size_name and not ("nnodes" in given and size_name == "WORLD_SIZE"):
        nnodes = _number(variables, size_name, least=1)
        if nnodes.value == 1:
            return NOTHING
        _check_rank(rank, nnodes)
        if "WORLD_SIZE" in variables:
            workers = _number(variables, "WORLD_SIZE", least=1)
            if workers.value % nnodes.value:
                raise _contradiction(nnodes, workers)
    elif "nnodes" not in given:
        note = (
            f"{rank.source}, but the number of nodes is not set; using one node (--nnodes, "
            "PET_NNODES)"
        )
        return FoundFlags(notes=(note,))
    found = FoundFlags(
        system="Kubernetes" if index is not None else ANY_SYSTEM,
        nnodes=nnodes,
        node_rank=rank,
        agents=nnodes,
        hosts=rank.value == 0,
    )
    if index is not None:
        found = _first_pod(found, hostname, index)
    if address:
        found = _master(found, variables, hostname)
    return found


def _first_pod(found: FoundFlags, hostname: str, index: str) -> FoundFlags:
    """Add the host name of the pod with index 0, derived from this pod's name."""
    source = f"JOB_COMPLETION_INDEX={index}, the host name {hostname}"
    name, dot, domain = hostname.partition(".")
    if not name.endswith(f"-{index}"):
        return found._replace(no_host=f"{source}, which does not end with -{index}")
    name = name.removesuffix(f"-{index}")
    job = Text(f"k8s-{name}", source)
    note = (
        f"{name}-0 resolves only with a headless Service, which must be set as the pods' subdomain"
    )
    return found._replace(
        host=Text(f"{name}-0{dot}{domain}", source),
        job=job,
        port=_job_port(job),
        notes=() if dot else (note,),
    )


def _master(found: FoundFlags, variables: Mapping[str, str], hostname: str) -> FoundFlags:
    """Add MASTER_ADDR and MASTER_PORT."""
    address, text = variables["MASTER_ADDR"], variables.get("MASTER_PORT", "")
    try:
        parse_host(address)
    except ValueError as error:
        raise UsageError(f"MASTER_ADDR={address[:80]!r}: {error}") from None
    host = Text(address, f"MASTER_ADDR={address}")
    if "KUBERNETES_SERVICE_HOST" in variables and _is_local(address):
        if not found.hosts and found.node_rank is not None:
            raise UsageError(
                f"{host.source} with {found.node_rank.source}: each pod has its own address",
                hint="set MASTER_ADDR to the first pod's name",
            )
        host = Text(hostname, host.source)
    port = found.port
    if text:
        try:
            port = Number(parse_port(text), f"MASTER_PORT={text}")
        except ValueError as error:
            raise UsageError(f"MASTER_PORT={text:.80}: {error}") from None
    return found._replace(host=host, port=port, no_host="", notes=())


# Parsing values.


def _first_set(variables: Mapping[str, str], *names: str) -> str:
    return next((name for name in names if name in variables), "")


def _number(variables: Mapping[str, str], name: str, least: int = 0) -> Number:
    text = variables.get(name, "")
    number = whole(text)
    if number is None or number < least:
        expected = f"a whole number, at least {least}"
        raise UsageError(
            f"{name}={text:.80}: expected {expected}" if text else f"{name} is not set"
        )
    return Number(number, f"{name}={text}")


def _text(variables: Mapping[str, str], name: str, prefix: str) -> Text:
    text = variables[name]
    safe = "".join(c if c.isalnum() or c in "._@-" else "_" for c in text)
    return Text(prefix + safe, f"{name}={text}")


def _job_port(job: Text) -> Number:
    number = _FIRST_PORT + zlib.crc32(job.value.encode(errors="surrogateescape")) % _PORTS
    return Number(number, f"the job's id {job.value}")


def _is_local(address: str) -> bool:
    return address in LOCAL_HOSTS or is_loopback(address)


def _check_rank(rank: Number | None, size: Number) -> None:
    if rank is not None and rank.value >= size.value:
        raise UsageError(f"{rank.source} is not below {size.source}", hint="ranks count from 0")


def _contradiction(one: Number, other: Number) -> UsageError:
    return UsageError(
        f"{one.source} contradicts {other.source}",
        hint="--nnodes and --rdzv-endpoint take precedence",
    )
