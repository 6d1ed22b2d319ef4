"""Derives a job's rendezvous from its launch settings.

c10d     all nodes have the same endpoint; the node that can bind it hosts the coordinator
static   node rank 0 hosts it at --master-addr and --master-port
others   a registry (etcd, a file, a plug-in) names the host and its address
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import TOKEN, Endpoint
from relight.core.group.group_types import GroupSettings
from relight.core.link.lease import lease_s
from relight.flags import rdzv_conf
from relight.flags.rdzv_conf import Conf
from relight.flags.spec import DEFAULT_MASTER_PORT, UNSET_RUN_ID, LaunchSpec
from relight.net.connection import Security
from relight.rendezvous.leader_lock import LeaderLock

DEFAULT_ENDPOINT_PORT = 29400
_DIAL_S = 5.0
_REJOIN_S = 1.5
"""How long an agent searches for a new coordinator after losing the old one."""
REPLICA = "RELIGHT_REPLICA_ID"
EXIT_BARRIER = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
"""The variable that torchrun uses for `exit_barrier_timeout` (in torch versions after 2.15)."""
_DIGITS = 9  # maximum number of digits


class Meeting(NamedTuple):
    """Where and how a job's nodes find each other.

    The `where` field is the endpoint in readable form. The `hosts` field contains all of the
    endpoint's hosts with their ports, and `alone` means that a single host may take over without a
    majority. If the job uses a registry (`register`), `hosts` is empty, and a coordinator's record
    in the registry expires after `ttl_s` unless it is renewed. The `hosted` field is True if this
    node hosts the coordinator, False if it doesn't, and None if that isn't known yet. The
    `local_addr` field is the address at which other nodes reach this node, or empty. The
    `fixed_port` field indicates that the workers' store also uses the endpoint's port. The
    `node_rank` field is this node's rank in a static rendezvous, and otherwise its replica number,
    or -1 if it has none. `endpoint_first` means that rank 0 is placed on the node that hosts the
    endpoint. The `topology` field is this node's place in the network, or empty. Times are in
    seconds.
    """

    job: str
    where: str
    register: LeaderLock | None
    ttl_s: float
    hosts: tuple[tuple[str, int], ...]
    alone: bool
    hosted: bool | None
    local_addr: str
    fixed_port: bool
    node_rank: int
    interval_s: float
    lease_s: float
    checkpoint_s: float
    dial_s: float
    seek_s: float
    close_s: float
    security: Security
    endpoint_first: bool = False
    topology: str = ""

    @property
    def who(self) -> str:
        """The job's human-readable name, including its id if the user specified one."""
        return "the job" if self.job == UNSET_RUN_ID else f"job {self.job}"

    @property
    def doctor(self) -> str:
        """The command that diagnoses a failed rendezvous."""
        if self.register is not None:
            return (
                f"check that {self.where} responds and is the same on all nodes; to check the "
                "network, run `relight doctor --nnodes=N --rdzv-endpoint=HOST`, with any node's "
                "host name, on all nodes at the same time"
            )
        return (
            f"run `relight doctor --nnodes=N --rdzv-endpoint={self.where}` on all nodes at the "
            "same time to see which connections fail"
        )

    @property
    def warning(self) -> str:
        """The warning to print on the coordinator's host if any host may join the job, or an empty
        string.
        """
        if not self.security.is_open:
            return ""
        return (
            f"no token is set: any host that can reach {self.where} can join this job (set one "
            f"with {TOKEN})"
        )

    @property
    def host(self) -> str:
        """The endpoint's first host."""
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        """The port of the endpoint's first host."""
        return self.hosts[0][1]


def _endpoint_first(spec: LaunchSpec, conf: rdzv_conf.Conf) -> bool:
    """Return whether rank 0 is placed on the node that hosts the endpoint. The user can request
    this directly, or by specifying which node hosts the endpoint.
    """
    if spec.rdzv_backend != "c10d":
        return False
    return conf.rank0 == "endpoint" or (conf.is_host is True and not conf.rank0)


def arrange(spec: LaunchSpec, env: Environment) -> tuple[Meeting, GroupSettings, list[str]]:
    """Return a multi-node job's rendezvous, its group settings, and notes for the user.

    Raises:
        UsageError: if the endpoint or a rendezvous setting is missing or wrong.
    """
    spec = _with_file_store(spec)
    pairs = rdzv_conf.merged(spec.rdzv_conf, spec.conf_defaults, spec.rdzv_backend)
    conf, notes = rdzv_conf.parse(pairs, spec.rdzv_backend)
    static = spec.rdzv_backend == "static"
    hosts: tuple[tuple[str, int], ...] = ()
    register = None
    if static or spec.rdzv_backend == "c10d":
        hosts = _static_hosts(spec) if static else _hosts(spec)
        where = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in hosts)
    else:
        register = _register(spec, dict(pairs))
        where = f"{spec.rdzv_backend} {spec.rdzv_endpoint}".rstrip()
        if spec.rdzv_id == UNSET_RUN_ID:
            notes.append(
                f"no --rdzv-id is set: all jobs at {where} without an id are treated as one job"
            )
    ranked = spec.node_rank if conf.rank is None else conf.rank
    node_rank = ranked if static else _replica(env)
    if static and node_rank >= spec.nnodes.max_nodes:
        raise UsageError(
            f"--rdzv-conf: rank={node_rank} is not below --nnodes={spec.nnodes.max_nodes}"
        )
    secured = security(env, conf)
    if conf.takeover == "alone" and len(hosts) < 2:
        notes.append(
            "takeover=alone has no effect, because the endpoint does not list several hosts"
        )
    by_topology, topology = spec.rank_order.by_topology and not static, ""
    if by_topology:
        from relight.rendezvous.topology import find

        topology, unknown = find(env.variables, spec.rank_order.file)
        notes += unknown
    meeting = Meeting(
        job=spec.rdzv_id,
        where=where,
        register=register,
        ttl_s=conf.ttl_s,
        hosts=hosts,
        alone=conf.takeover == "alone",
        hosted=node_rank == 0 if static else conf.is_host,
        local_addr=spec.local_addr,
        fixed_port=static,
        node_rank=node_rank,
        interval_s=conf.interval_s,
        lease_s=lease_s(conf.lost_after_s),
        checkpoint_s=conf.checkpoint_timeout,
        dial_s=min(_DIAL_S, conf.read_timeout or _DIAL_S),
        seek_s=2 * conf.read_timeout if hosts and conf.read_timeout else conf.join_timeout,
        close_s=conf.close_timeout,
        security=secured,
        endpoint_first=_endpoint_first(spec, conf),
        topology=topology,
    )
    settings = GroupSettings(
        min_nodes=spec.nnodes.min_nodes,
        max_nodes=spec.nnodes.max_nodes,
        max_restarts=spec.max_restarts.most,
        settle_timeout_s=conf.last_call_timeout,
        join_timeout_s=conf.join_timeout,
        exit_barrier_s=_exit_barrier_s(spec, conf, env),
        rejoin_grace_s=_REJOIN_S,
        ordered=static,
        checkpoint_first=spec.membership_change == "at-checkpoint",
        lost_after_s=conf.lost_after_s,
        restart_window_s=spec.max_restarts.window_s,
        smart=spec.restart_policy == "smart",
        restart_on=spec.restart_on,
        fail_on=spec.fail_on,
        by_topology=by_topology,
        segment=spec.segment,
    )
    return meeting, settings, notes


def _replica(env: Environment) -> int:
    """Return the number that `relight submit` assigned to this replica of its role, or -1."""
    text = env.get(REPLICA)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS else -1


def _with_file_store(spec: LaunchSpec) -> LaunchSpec:
    """Return the spec, with its backend changed to `file` if it requests torchrun's c10d backend
    with a file store.
    """
    pairs = dict(spec.rdzv_conf)
    if spec.rdzv_backend != "c10d" or pairs.get("store_type", "").strip().lower() != "file":
        return spec
    endpoint = spec.rdzv_endpoint.host and Endpoint(os.path.abspath(spec.rdzv_endpoint.host), None)
    others = tuple(pair for pair in spec.rdzv_conf if pair[0] not in ("store_type", "read_timeout"))
    return spec._replace(
        rdzv_backend="file", rdzv_endpoint=endpoint or spec.rdzv_endpoint, rdzv_conf=others
    )


def _exit_barrier_s(spec: LaunchSpec, conf: Conf, env: Environment) -> float:
    """Return how long a finished node waits for the other nodes to finish."""
    text = env.get(EXIT_BARRIER)
    if not text or "exit_barrier_timeout" in dict(spec.rdzv_conf):
        return conf.exit_barrier_timeout
    try:
        return rdzv_conf.parse_wait(text)
    except ValueError as error:
        raise UsageError(
            f"{EXIT_BARRIER}={text}: {error}",
            hint="--rdzv-conf=exit_barrier_timeout=SECONDS takes precedence over it",
        ) from None


def _hosts(spec: LaunchSpec) -> tuple[tuple[str, int], ...]:
    endpoint = spec.rdzv_endpoint
    if not endpoint.host:
        raise UsageError(
            f"--nnodes={spec.nnodes} without --rdzv-endpoint",
            hint="use the same --rdzv-endpoint=HOST:PORT on all nodes, with the address of one of "
            "them",
        )
    if "/" in endpoint.host:
        raise UsageError(
            f"--rdzv-endpoint={endpoint}: c10d requires HOST or HOST:PORT",
            hint="for a shared directory, use --rdzv-backend=file",
        )
    hosts = tuple(
        (each.host, DEFAULT_ENDPOINT_PORT if each.port is None else each.port)
        for each in (endpoint, *endpoint.others)
    )
    if any(port == 0 for _, port in hosts):
        raise UsageError(
            "the endpoint's port can't be 0, because other nodes can't know the actual port"
        )
    if len(set(hosts)) < len(hosts):
        raise UsageError("--rdzv-endpoint lists a host twice")
    return hosts


def _register(spec: LaunchSpec, conf: Mapping[str, str]) -> LeaderLock:
    from relight.rendezvous import backends

    endpoint = str(spec.rdzv_endpoint)
    if not endpoint:
        raise UsageError(
            f"--rdzv-backend={spec.rdzv_backend} without --rdzv-endpoint",
            hint="for etcd, HOST:PORT,HOST:PORT,…; for file, a directory shared by all nodes",
        )
    return backends.open(spec.rdzv_backend, endpoint, spec.rdzv_id, conf)


def _static_hosts(spec: LaunchSpec) -> tuple[tuple[str, int], ...]:
    host, port = spec.rdzv_endpoint.host, spec.rdzv_endpoint.port
    if spec.rdzv_endpoint.others:
        raise UsageError(
            "the static rendezvous has a single host, node rank 0",
            hint="--rdzv-backend=c10d accepts several hosts in --rdzv-endpoint",
        )
    if not host:
        host, port = spec.master_addr, spec.master_port
    if port == 0:
        raise UsageError(
            "the endpoint's port can't be 0, because other nodes can't know the actual port"
        )
    return ((host, DEFAULT_MASTER_PORT if port is None else port),)


def security(env: Environment, conf: Conf) -> Security:
    """Return the settings for authentication between nodes, from the environment and `--rdzv-conf`.

    Raises:
        UsageError: if a file can't be read or has unexpected content.
    """
    if conf.token_file:
        secret = rdzv_conf.read_token(conf.token_file)
    else:
        secret = env.get(TOKEN).strip().encode(errors="surrogateescape")
    if not conf.tls_cert:
        return Security(secret)
    from relight.net.tls import contexts

    return Security(secret, *contexts(conf.tls_cert, conf.tls_key, conf.tls_ca))
