"""Fills in flags that the user did not set, from the cluster's environment variables.

A flag or its PET_ variable takes precedence over the cluster's variables, so only missing flags are
filled in. For example, a job started with `srun relight run --nnodes=2:4` is elastic and gets its
rendezvous endpoint from Slurm.

A fixed-size job uses the static rendezvous, because the cluster has already numbered the nodes.
GROUP_RANK is SLURM_NODEID, OMPI_COMM_WORLD_RANK or the pod's index, and agents and workers use the
same port. Jobs with a range of nodes (`--nnodes=2:4`), or with nodes ordered by network topology
(`--rank-order=topology`), use c10d at the same endpoint, which only node 0 may host. If no variable
contains the port, the port is derived from the job's id (`cluster_env`).
"""

import socket
from contextlib import suppress
from typing import Any, NamedTuple

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.text import pluralize
from relight.base.values import Endpoint, Nodes
from relight.flags.spec import FLAG_BY_NAME, LaunchSpec
from relight.rendezvous import user_token
from relight.rendezvous.cluster_env import ANY_SYSTEM, NOTHING, FoundFlags, Number, detect

_MEETING = ("nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "master-addr", "master-port",
            "rdzv-id")  # fmt: skip
_PLACE = {"rdzv-endpoint", "master-addr"}


class Taken(NamedTuple):
    """A flag's value and its source."""

    flag: str
    value: Any
    source: str

    def __str__(self) -> str:
        value = self.value
        if self.flag == "rdzv-conf":
            value = ",".join(map("=".join, value))
        return f"{self.flag}={value}, from {self.source}"


def take(
    spec: LaunchSpec, given: set[str], env: Environment
) -> tuple[LaunchSpec, set[str], list[str]]:
    """Return the spec with missing flags filled in from the environment, all flags that are now
    set, and notes for the user.

    Args:
        spec: the user's settings.
        given: the flags that the user set, including PET_ variables.
        env: the environment.

    Raises:
        UsageError: if the environment's variables contradict each other or request something
            impossible.
    """
    if spec.standalone:
        return spec, given, []
    indexed = "JOB_COMPLETION_INDEX" in env.variables
    hostname = socket.getfqdn() if indexed else socket.gethostname()
    try:
        found = detect(env.variables, given, hostname)
    except UsageError as error:
        if not _is_settled(spec, given):
            raise
        found = NOTHING._replace(notes=(f"ignoring the environment: {error.message}",))
    filled, taken, notes = fill(spec, given, found)
    if taken and found.system == "Slurm" and not _has_security(filled, env):
        path, note = user_token.find(env)
        notes += [note] if note else []
        if path:
            conf = (*filled.rdzv_conf, ("token_file", path))
            filled = filled._replace(rdzv_conf=conf)
            taken = [each for each in taken if each.flag != "rdzv-conf"]
            taken.append(Taken("rdzv-conf", conf, "this user's token, for Slurm"))
    names = {each.flag for each in taken}
    if spec.verbose:
        notes += map(str, [*_user_flags(spec, given, env), *taken])
    # With c10d, --master-port is already part of the endpoint.
    used = {"master-port"} if "rdzv-endpoint" in names else set()
    return filled, given - used | names, notes


def _has_security(spec: LaunchSpec, env: Environment) -> bool:
    """Return whether the user or the site has configured how nodes authenticate."""
    keys = {name for name, _ in (*spec.rdzv_conf, *spec.conf_defaults)}
    return bool(env.get("RELIGHT_TOKEN") or keys & {"token_file", "tls_cert"})


def fill(
    spec: LaunchSpec, given: set[str], found: FoundFlags
) -> tuple[LaunchSpec, list[Taken], list[str]]:
    """Fill in missing flags. Return the spec, the flags that were filled in, and notes for the
    user.

    Raises:
        UsageError: if the values found can't work, whether or not these flags are set.
    """
    notes = list(found.notes)
    nodes = _nodes(spec, given, found, notes)
    if nodes.max_nodes == 1 or not found.system:
        return spec, [], notes
    taken = []
    if "nnodes" not in given and found.nnodes is not None:
        taken.append(Taken("nnodes", nodes, found.nnodes.source))
    own_rank = "node-rank" in given or "rank" in dict(spec.rdzv_conf)
    if _PLACE & given:
        fits = found.agents is None or found.agents.value == nodes.max_nodes
        backend = spec.rdzv_backend
        needs_rank = backend == "static" and fits and not own_rank
    elif spec.rdzv_backend in ("static", "c10d"):
        backend = _backend(spec, given, found, nodes)
        needs_rank = backend == "static" and not own_rank
        taken += _place(spec, given, found, backend, needs_rank=needs_rank)
        if "rdzv-backend" not in given:
            taken.append(Taken("rdzv-backend", backend, found.system))
    else:
        needs_rank = False
    if needs_rank and found.node_rank is not None:
        taken.append(Taken("node-rank", *found.node_rank))
    if "rdzv-id" not in given and found.job is not None and taken:
        taken.append(Taken("rdzv-id", *found.job))
    if taken:
        what = pluralize(nodes.max_nodes, "node") if taken[0].flag == "nnodes" else "rendezvous"
        notes.insert(0, f"{what} according to {_describe_source(spec, found, taken)}")
    changes = {FLAG_BY_NAME[each.flag].field: each.value for each in taken}
    return spec._replace(**changes), taken, notes


def _describe_source(spec: LaunchSpec, found: FoundFlags, taken: list[Taken]) -> str:
    """Describe where the flags come from. Variables that don't identify a cluster may be stray, so
    they are named, with the flag that ignores them.
    """
    if found.system == ANY_SYSTEM:
        known = (found.nnodes, found.node_rank, found.host)
        names = ", ".join(each.source for each in known if each is not None)
        return names + ("; --standalone ignores them" if taken[0].flag == "nnodes" else "")
    return found.system if spec.verbose else f"{found.system} (-v shows the variables used)"


def _is_settled(spec: LaunchSpec, given: set[str]) -> bool:
    """Return whether the flags determine all settings, so that the environment is ignored."""
    if "nnodes" not in given:
        return False
    ranked = "node-rank" in given or spec.rdzv_backend != "static"
    return spec.nnodes.max_nodes == 1 or (bool(_PLACE & given) and ranked)


def _nodes(spec: LaunchSpec, given: set[str], found: FoundFlags, notes: list[str]) -> Nodes:
    """Return the number of nodes in the job, or 1 if the environment should be ignored."""
    number = found.nnodes.value if found.nnodes else 1
    agents = found.agents.value if found.agents else number
    crowded = agents > number or (found.here is not None and found.here.value > 1)
    if "nnodes" not in given:
        if crowded:
            raise _crowded(found)
        return Nodes(number, number)
    if found.nnodes is None:
        return spec.nnodes
    # Either each node runs a job of its own, or the cluster's job has more nodes than this job.
    if spec.nnodes.max_nodes == 1 or agents == 1:
        if agents > 1:
            notes.append(
                f"--nnodes=1 overrides {found.nnodes.source}: each agent runs a separate job"
            )
        return Nodes(1, 1)
    if crowded and agents > spec.nnodes.max_nodes:  # the first to arrive would form the group
        raise _crowded(found)
    if not spec.nnodes.min_nodes <= agents <= spec.nnodes.max_nodes:
        notes.append(f"--nnodes={spec.nnodes} overrides {(found.agents or found.nnodes).source}")
    return spec.nnodes


def _crowded(found: FoundFlags) -> UsageError:
    assert found.nnodes is not None and found.agents is not None
    here = found.here if found.here is not None and found.here.value > 1 else None
    where = (
        f", {here.value} on this host" if here else f" on {pluralize(found.nnodes.value, 'node')}"
    )
    source = (here or found.agents).source
    return UsageError(
        f"{found.system} started relight {found.agents.value} times{where} ({source})",
        hint="start one agent per node (which starts all its workers): "
        f"{found.remedy} relight run --nproc-per-node=N; or --nnodes={found.agents.value} to treat "
        "each as a node",
    )


def _backend(spec: LaunchSpec, given: set[str], found: FoundFlags, nodes: Nodes) -> str:
    if "rdzv-backend" in given:
        return spec.rdzv_backend
    agents = nodes.max_nodes if found.agents is None else found.agents.value
    fixed = nodes.min_nodes == nodes.max_nodes == agents  # if more, some are spares
    numbered = fixed and not spec.rank_order.by_topology
    return "static" if numbered or "node-rank" in given else "c10d"


def _place(
    spec: LaunchSpec, given: set[str], found: FoundFlags, backend: str, *, needs_rank: bool
) -> list[Taken]:
    """Return the flags for the nodes' rendezvous."""
    host, rank, port = found.host, found.node_rank, found.port
    if host is None:
        raise UsageError(found.no_host, hint="--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT")
    if "master-port" in given and spec.master_port is not None:
        port = Number(spec.master_port, "--master-port")
    if backend == "c10d":
        endpoint = Endpoint(host.value, port.value if port else None)
        source = host.source if port is None else f"{host.source}, {port.source}"
        taken = [Taken("rdzv-endpoint", endpoint, source)]
        if rank is not None and "is_host" not in dict(spec.rdzv_conf):
            conf = (*spec.rdzv_conf, ("is_host", "1" if found.hosts else "0"))
            if found.hosts and "rank0" not in dict(conf):  # the cluster doesn't assign the ranks
                conf = (*conf, ("rank0", "any"))
            taken.append(Taken("rdzv-conf", conf, rank.source))
        return taken
    if needs_rank and rank is not None and rank.value == 0 and not found.hosts:
        raise UsageError(
            f"{rank.source} is not on {host.value}, the first host",
            hint="--rdzv-backend=c10d needs no node ranks",
        )
    taken = [Taken("master-addr", *host)]
    if port is not None and "master-port" not in given:
        taken.append(Taken("master-port", *port))
    return taken


def _user_flags(spec: LaunchSpec, given: set[str], env: Environment) -> list[Taken]:
    """Return the rendezvous flags that the user has set, with their sources."""
    taken = []
    for name in _MEETING:
        flag = FLAG_BY_NAME[name]
        variable, value = "PET_" + flag.field.upper(), getattr(spec, flag.field)
        source = "the command line"
        if variable in env.variables and flag.parse is not None:
            text = env.variables[variable]
            with suppress(ValueError):  # the command line takes precedence
                source = f"{variable}={text}" if flag.parse(text) == value else source
        if name in given:
            taken.append(Taken(name, value, source))
    return taken
