"""Defines a node's launch settings: the table of flags, and the record of checked values. This
module does no I/O.

`FLAGS` describes the whole command line of `relight run`: each flag's name, parser, default and
help. Names, defaults and meanings match torchrun's (torch 2.14, `torch.distributed.run`), and so do
the `PET_<NAME>` variables that supply defaults. A new setting needs a field in `LaunchSpec`, a row
in `FLAGS`, and code that uses the setting.

`check` examines combinations of values. It rejects combinations that can't work, and returns a
one-line note for each setting that torchrun would silently ignore.
"""

import signal
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from relight.base.env import OWN_VARIABLES
from relight.base.errors import UsageError, exit_code_text
from relight.base.values import (
    BACKENDS,
    BACKGROUND,
    STDERR,
    STDOUT,
    BadNodesDirectory,
    Endpoint,
    HangTimeout,
    HealthCheck,
    KeepWarm,
    Nodes,
    PageAddress,
    PreemptionSource,
    RankOrder,
    RestartBudget,
    StreamChoice,
    one_of,
    parse_backend,
    parse_bad_nodes,
    parse_conf,
    parse_count,
    parse_endpoint,
    parse_event_handler,
    parse_exit_codes,
    parse_filters,
    parse_grace,
    parse_hang_timeout,
    parse_health_check,
    parse_host,
    parse_interval,
    parse_keep_warm,
    parse_metrics,
    parse_name,
    parse_nodes,
    parse_notice,
    parse_nproc,
    parse_page,
    parse_pattern,
    parse_port,
    parse_preload,
    parse_rank_order,
    parse_ranks,
    parse_restarts,
    parse_segment,
    parse_signals,
    parse_slow_ranks,
    parse_streams,
    parse_trackers,
)

MAX_ID_BYTES = 200

DEFAULT_MASTER_PORT = 29500
DEFAULT_GRACE_S = 30
UNSET_RUN_ID = "none"
LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")


class LaunchSpec(NamedTuple):
    """All checked values of a `relight run` command: one field per flag, in the order of `FLAGS`,
    followed by the script and the site's defaults.
    """

    nnodes: Nodes
    nproc_per_node: str
    rdzv_backend: str
    rdzv_endpoint: Endpoint
    rdzv_id: str
    rdzv_conf: tuple[tuple[str, str], ...]
    standalone: bool
    node_rank: int
    master_addr: str
    master_port: int | None
    local_addr: str
    rank_order: RankOrder
    segment: int
    max_restarts: RestartBudget
    restart_policy: str
    restart_on: tuple[int, ...]
    fail_on: tuple[int, ...]
    checkpoints: str
    failure_report: str
    hang_timeout: HangTimeout | None
    watch_slow_ranks: float | None
    health_check: HealthCheck | None
    health_check_timeout: float
    bad_nodes: BadNodesDirectory | None
    monitor_interval: float
    start_method: str
    role: str
    name: str
    status: PageAddress | None
    watch_metric: tuple[str, ...]
    tracker: tuple[tuple[str, str], ...]
    module: bool
    no_python: bool
    run_path: bool
    signals_to_handle: tuple[int, ...]
    shutdown_timeout: float | None
    end_with_parent: bool
    virtual_local_rank: bool
    numa_binding: str
    worker_store: str
    membership_change: str
    on_preempt: PreemptionSource | None
    preload: tuple[str, ...]
    keep_warm: KeepWarm | None
    log_dir: str
    redirects: StreamChoice
    tee: StreamChoice
    local_ranks_filter: tuple[int, ...]
    duplicate_stdout_filters: tuple[str, ...]
    duplicate_stderr_filters: tuple[str, ...]
    log_line_prefix_template: str
    repeated_lines: str
    logs_specs: str
    event_log_handler: str
    record_group: bool
    verbose: bool
    script: str
    script_args: tuple[str, ...]
    conf_defaults: tuple[tuple[str, str], ...] = ()
    """Key-value pairs from the site's configuration, for keys that are missing from `rdzv_conf`."""

    def runs_locally(self) -> bool:
        """Return whether the job has only one node and therefore doesn't need a rendezvous."""
        return self.nnodes.max_nodes == 1

    def makes_own_id(self) -> bool:
        """Return whether the job uses torchrun's standalone mode, with a generated id."""
        return self.standalone or (
            self.rdzv_backend == "static"
            and not self.rdzv_endpoint.host
            and self.master_port is None
            and self.runs_locally()
        )

    def store_address(self) -> Endpoint:
        """Return the address of the workers' store in a single-node job. Port 0 means any free
        port.
        """
        static = self.rdzv_backend == "static" and not self.standalone
        if static and self.rdzv_endpoint.host:
            port = self.rdzv_endpoint.port
            return Endpoint(self.rdzv_endpoint.host, DEFAULT_MASTER_PORT if port is None else port)
        if static and self.master_port is not None:
            return Endpoint(self.master_addr, self.master_port)
        return Endpoint(self.local_addr or "127.0.0.1", 0)

    def keeps_logs(self) -> bool:
        """Return whether the user requested log files that outlive the job."""
        return self.log_dir != "/dev/null" and bool(
            self.log_dir or self.redirects.any() or self.tee.any()
        )


class Flag(NamedTuple):
    """One row of the flag table. `parse` converts a value, and raises ValueError if it is invalid.
    For a switch, `parse` is None. The default may come from `PET_<NAME>` (`from_env`) or from
    `variable`. A flag with an `implied` value may be given without a value. If it does have a
    value, the value must follow `=`. A flag with `repeats` may be given several times; its parser
    receives all values as one string, one per line.
    """

    name: str
    parse: Callable[[str], Any] | None
    default: Any
    metavar: str
    help: str
    short: str = ""
    from_env: bool = True
    variable: str = ""
    implied: str = ""
    repeats: bool = False

    @property
    def field(self) -> str:
        """The name of the field in `LaunchSpec`."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> str:
        """The variable that may hold the default, or an empty string."""
        return self.variable or ("PET_" + self.field.upper() if self.from_env else "")


DEFAULT_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)  # Windows, where jobs may be submitted, has only the first two
)
_BOTH = "0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:STREAMS,…"

FLAGS: tuple[Flag, ...] = (
    Flag("nnodes", parse_nodes, Nodes(1, 1), "N|MIN:MAX", "nodes in the job, or a range"),
    Flag("nproc-per-node", parse_nproc, "1", "N|auto|cpu|gpu|xpu", "workers on this node"),
    Flag("rdzv-backend", parse_backend, "static", "NAME", ", ".join(BACKENDS)),
    Flag("rdzv-endpoint", parse_endpoint, Endpoint("", None), "HOST[:PORT]",
         "rendezvous address; if several hosts are listed (HOST1,HOST2,HOST3), another one takes "
         "over when one is lost"),
    Flag("rdzv-id", str, UNSET_RUN_ID, "ID", "job id; must be the same on all nodes"),
    Flag("rdzv-conf", parse_conf, (), "K=V,…", "additional rendezvous settings"),
    Flag("standalone", None, False, "", "run on a single node, using a free port"),
    Flag("node-rank", parse_count, 0, "N", "rank of this node (static only)"),
    Flag("master-addr", parse_host, "127.0.0.1", "HOST", "address of node 0 (static only)"),
    Flag("master-port", parse_port, None, "PORT",
         f"port of node 0 (static only) [{DEFAULT_MASTER_PORT}]"),
    Flag("local-addr", parse_host, "", "HOST", "address at which other nodes reach this node"),
    Flag("rank-order", parse_rank_order, RankOrder(), "host|topology[=FILE]",
         "order ranks by host name (host), or by network location (topology), as given by "
         "RELIGHT_TOPOLOGY, FILE or Slurm", from_env=False, variable="RELIGHT_RANK_ORDER"),
    Flag("segment", parse_segment, 1, "N",
         "train on a multiple of N nodes; with --rank-order=topology, each segment of N nodes is "
         "placed under one leaf switch where possible",
         from_env=False, variable="RELIGHT_SEGMENT"),
    Flag("max-restarts", parse_restarts, RestartBudget(0), "N[/TIME]",
         "maximum number of restarts after failures, optionally per time window, such as 3/1h"),
    Flag("restart-policy", one_of("always", "smart"), "always", "NAME",
         "smart: give up if the same exception repeats without progress, back off between "
         "restarts, and reset --max-restarts after "
         "progress", from_env=False, variable="RELIGHT_RESTART_POLICY"),
    Flag("restart-on", parse_exit_codes, (), "CODES",
         "restart only if the failed worker ended with one of these exit codes or signals, such "
         "as 75,SIGKILL",
         from_env=False, variable="RELIGHT_RESTART_ON"),
    Flag("fail-on", parse_exit_codes, (), "CODES",
         "never restart if it ended with one of these, such as 2,SIGXCPU",
         from_env=False, variable="RELIGHT_FAIL_ON"),
    Flag("checkpoints", parse_pattern, "", "PATTERN",
         "checkpoint files, such as 'ckpt/*.pt'; a new one counts as progress", from_env=False),
    Flag("failure-report", parse_pattern, "", "FILE",
         "write a JSON report to this file if the job fails",
         from_env=False, variable="RELIGHT_FAILURE_REPORT"),
    Flag("hang-timeout", parse_hang_timeout, None, "S|auto|off",
         "fail the job if no rank makes progress for this long (auto: 5 minutes or more); "
         "the report shows where each rank is",
         from_env=False, variable="RELIGHT_HANG_TIMEOUT"),
    Flag("watch-slow-ranks", parse_slow_ranks, None, "S",
         "report stragglers (ranks that the others keep waiting for), measured over S seconds "
         "[120]",
         from_env=False, variable="RELIGHT_WATCH_SLOW_RANKS", implied="on"),
    Flag("health-check", parse_health_check, None, "COMMAND|NAMES",
         "check this node before each start of its workers; the node leaves the job if the check "
         "fails. A command such as ./check.sh, or any of "
         "disk[=1G],memory[=1G],shm[=32M],gpu,network",
         from_env=False, variable="RELIGHT_HEALTH_CHECK"),
    Flag("health-check-timeout", parse_interval, 60.0, "S", "time limit of the health check",
         from_env=False),
    Flag("bad-nodes", parse_bad_nodes, None, "DIR[,TIME]",
         "record nodes whose hardware fails in this shared directory [for 7d]; submitted jobs "
         "avoid these nodes",
         from_env=False, variable="RELIGHT_BAD_NODES"),
    Flag("monitor-interval", parse_interval, 0.1, "S",
         "accepted for torchrun compatibility; no effect"),
    Flag("start-method", one_of("spawn", "fork", "forkserver"), "spawn", "NAME",
         "accepted for torchrun compatibility; no effect"),
    Flag("role", str, "default", "NAME", "role of the workers on this node"),
    Flag("name", parse_name, "", "NAME",
         "job name for relight list, status, logs and cancel [the name of SCRIPT]",
         from_env=False, variable="RELIGHT_NAME"),
    Flag("status", parse_page, None, "[HOST:]PORT[,public]",
         "serve a status page and metrics on rank 0's node while workers run; public: no token is "
         "needed to view them",
         from_env=False, variable="RELIGHT_STATUS"),
    Flag("watch-metric", parse_metrics, (), "REGEX",
         "show numbers found in the workers' output in status, top and the status page, such as "
         "'loss: ([0-9.]+)'; may be repeated",
         from_env=False, variable="RELIGHT_WATCH_METRIC", repeats=True),
    Flag("tracker", parse_trackers, (), "NAME[=CONFIG]",
         "tracker used by relight.tracker in the workers: fsspec, mlflow or a plug-in, and its "
         "settings file; may be repeated", from_env=False, repeats=True),
    Flag("module", None, False, "", "SCRIPT is a module, as in python -m", short="m"),
    Flag("no-python", None, False, "", "SCRIPT is an executable, not Python"),
    Flag("run-path", None, False, "", "run SCRIPT with runpy.run_path"),
    Flag("signals-to-handle", parse_signals, DEFAULT_SIGNALS, "NAMES",
         "signals that stop the job, forwarded to the workers"),
    Flag("shutdown-timeout", parse_grace, None, "S",
         f"time that workers have to stop before they are killed [{DEFAULT_GRACE_S}]"),
    Flag("end-with-parent", None, False, "",
         "stop the job, as on SIGTERM, when the process that started it exits",
         from_env=False, variable="RELIGHT_END_WITH_PARENT"),
    Flag("virtual-local-rank", None, False, "", "set LOCAL_RANK to 0 and let each worker see only "
    "its own GPU"),
    Flag("numa-binding", one_of("node", "socket", "exclusive", "core-complex"), "", "NAME",
         "bind workers to CPUs: node, socket, exclusive, core-complex", from_env=False),
    Flag("worker-store", one_of("agent", "rank0"), "agent", "NAME",
         "which process serves MASTER_PORT: agent, or rank0's worker", from_env=False),
    Flag("membership-change", one_of("stop", "at-checkpoint"), "stop", "NAME",
         "how to admit new nodes: stop the workers immediately, or after they save (at-checkpoint)",
         from_env=False),
    Flag("on-preempt", parse_notice, None, "SIGNAL|FILE",
         "preemption notice for this node: a signal (in addition to SIGTERM), or the creation of "
         "a file; workers that call relight.worker.should_checkpoint() save and exit",
         from_env=False, variable="RELIGHT_ON_PREEMPT"),
    Flag("preload", parse_preload, (BACKGROUND,), "HOW|MODULE,…",
         "import these modules once and fork the workers from that process; auto: the modules "
         "that the script imports; background: as auto, but only for restarts (--max-restarts), "
         "and only once the script's own imports are complete, usually after the first optimizer "
         "step; off. Not with --no-python or --run-path",
         from_env=False, variable="RELIGHT_PRELOAD"),
    Flag("keep-warm", parse_keep_warm, None, "MINUTES|while:PID",
         "keep the --preload process for later jobs until it is unused for MINUTES [30], or while "
         "process PID runs; implies --preload=auto",
         from_env=False, variable="RELIGHT_KEEP_WARM", implied="on"),
    Flag("log-dir", str, "", "DIR", "base directory of log files"),
    Flag("redirects", parse_streams, StreamChoice(0), "STREAMS", "write output to files: " + _BOTH,
         short="r"),
    Flag("tee", parse_streams, StreamChoice(0), "STREAMS",
         "write output to files and the console; values as for --redirects", short="t"),
    Flag("local-ranks-filter", parse_ranks, (), "RANKS", "show only these local ranks on the "
    "console"),
    Flag("duplicate-stdout-filters", parse_filters, (), "TEXTS",
         "copy tee'd lines that contain one of these strings to filtered_stdout.log"),
    Flag("duplicate-stderr-filters", parse_filters, (), "TEXTS",
         "the same for stderr: filtered_stderr.log"),
    Flag("log-line-prefix-template", str, "", "TEXT",
         "prefix of each tee'd line, with ${role_name}, ${rank}, ${local_rank}, "
         "${hostname} (torch 2.14)"),
    Flag("repeated-lines", one_of("once", "all", "always"), "once", "NAME",
         "once: on a terminal, show a line that several ranks print only once, with their ranks; "
         "always: in files and pipes too; all: show every line from every rank",
         from_env=False, variable="RELIGHT_REPEATED_LINES"),
    Flag("logs-specs", str, "default", "NAME", "only `default`", from_env=False),
    Flag("event-log-handler", parse_event_handler, "null", "NAME",
         "destination of events: null or dynamic_rendezvous (none), console (stderr, one JSON "
         "line each), or a relight.events plug-in; --log-dir keeps them in events.jsonl"),
    Flag("record-group", None, False, "",
         "also write the coordinator's inputs and decisions to events.jsonl, for relight events "
         "--replay (large files)", from_env=False),
    Flag("print-completion", one_of("bash", "zsh", "tcsh", "fish"), "", "SHELL",
         "print shell completion for torchrun's flags (torch 2.14); relight completion covers all "
         "commands", from_env=False),
    Flag("help", None, False, "", "show this help", short="h", from_env=False),
    Flag("verbose", None, False, "",
         "print events to stderr: worker starts, exits, restarts …", short="v",
         from_env=False),
)  # fmt: skip

FLAG_BY_NAME = {flag.name: flag for flag in FLAGS}
_KNOWN_VARIABLES = OWN_VARIABLES | {flag.source for flag in FLAGS}


def check(spec: LaunchSpec, given: "set[str]") -> list[str]:
    """Reject conflicting values, and return a note for each value that is ignored.

    Args:
        spec: the values, each valid on its own.
        given: the names of the flags set on the command line or in a PET_ variable.

    Raises:
        UsageError: if the combination can't work.
    """
    notes: list[str] = []
    if spec.standalone:
        _check_standalone(spec, given, notes)
    _check_restarts(spec, given, notes)
    _check_script_form(spec, notes)
    _check_logs(spec, notes)
    static = spec.rdzv_backend == "static" and not spec.standalone
    if static and spec.node_rank >= spec.nnodes.max_nodes:
        raise UsageError(
            f"--node-rank={spec.node_rank} is not below --nnodes={spec.nnodes.max_nodes}",
            hint="node ranks count from 0",
        )
    least, most = spec.nnodes
    if most > 1 and (least % spec.segment or most % spec.segment):
        raise UsageError(
            f"--nnodes={spec.nnodes} is not a multiple of --segment={spec.segment}",
            hint="both bounds of --nnodes must be multiples of it",
        )
    if static and spec.rank_order.by_topology and not spec.runs_locally():
        notes.append("--rank-order=topology has no effect: in the static rendezvous, ranks follow "
                     "--node-rank")  # fmt: skip
    if static and "/" in spec.rdzv_endpoint.host:
        raise UsageError(
            f"--rdzv-endpoint={spec.rdzv_endpoint}: static rendezvous requires HOST:PORT",
            hint="for a shared directory, use --rdzv-backend=file",
        )
    if static and not spec.master_addr and not spec.rdzv_endpoint.host and not spec.makes_own_id():
        raise UsageError(
            "--master-addr is empty", hint="perhaps from an unset variable; it takes a host"
        )
    if "node-rank" in given and spec.node_rank and not static:
        notes.append("--node-rank has no effect: only the static rendezvous has node ranks")
    if not spec.standalone and not static and {"master-addr", "master-port"} & given:
        notes.append("--master-addr and --master-port have no effect with --rdzv-backend="
                     f"{spec.rdzv_backend}; the endpoint is used instead")  # fmt: skip
    if static and spec.runs_locally():
        fixed = spec.rdzv_endpoint.host or spec.master_port is not None
        if "master-addr" in given and not fixed:
            notes.append("--master-addr has no effect without --master-port; a free port is used")
        if "local-addr" in given and fixed:
            notes.append("--local-addr has no effect with --master-port or a static endpoint")
    if static and not spec.runs_locally():
        if spec.nnodes.min_nodes < spec.nnodes.max_nodes:
            notes.append(f"--nnodes={spec.nnodes}: the static rendezvous waits for all "
                         f"{spec.nnodes.max_nodes} nodes")  # fmt: skip
        if "master-addr" not in given and not spec.rdzv_endpoint.host:
            notes.append("without --master-addr, all nodes must be on this machine")
    if not spec.rdzv_id and not spec.runs_locally():
        raise UsageError("--rdzv-id is empty", hint="all nodes of a job need the same id")
    if len(spec.rdzv_id.encode(errors="surrogateescape")) > MAX_ID_BYTES:
        raise UsageError(
            f"--rdzv-id is longer than {MAX_ID_BYTES} bytes; it is used as a directory name",
            hint=f"starts with {spec.rdzv_id[:40]}",
        )
    if "/" in spec.rdzv_id or "\0" in spec.rdzv_id:
        raise UsageError(
            f"--rdzv-id={spec.rdzv_id} contains a slash; it is used as a directory name"
        )
    return notes


def _check_standalone(spec: LaunchSpec, given: "set[str]", notes: list[str]) -> None:
    contradictions = []
    if spec.nnodes.max_nodes != 1:
        contradictions.append(f"--nnodes={spec.nnodes}")
    if "rdzv-backend" in given and spec.rdzv_backend != "c10d":
        contradictions.append(f"--rdzv-backend={spec.rdzv_backend}")
    if spec.rdzv_endpoint.host not in LOCAL_HOSTS:
        contradictions.append(f"--rdzv-endpoint={spec.rdzv_endpoint.host}")
    if spec.node_rank:
        contradictions.append(f"--node-rank={spec.node_rank}")
    if contradictions:
        raise UsageError(
            f"--standalone contradicts {', '.join(contradictions)}",
            hint="leave out --standalone in multi-node jobs",
        )
    unused = sorted({"master-addr", "master-port"} & given)
    if spec.rdzv_endpoint.port:
        unused.append("rdzv-endpoint")
    if unused:
        names = ", ".join("--" + name for name in unused)
        notes.append(f"{names}: no effect with --standalone, which uses a free port")


def _check_restarts(spec: LaunchSpec, given: "set[str]", notes: list[str]) -> None:
    both = sorted({*spec.restart_on} & {*spec.fail_on})
    if both:
        raise UsageError(
            f"--restart-on and --fail-on both list {exit_code_text(both[0])}",
            hint="leave it out of one of them",
        )
    rules = sorted({"restart-on", "fail-on"} & given)
    if rules and not spec.max_restarts.most:
        names = " and ".join("--" + name for name in rules)
        notes.append(f"no effect without --max-restarts: {names}")


def _check_script_form(spec: LaunchSpec, notes: list[str]) -> None:
    if spec.module and (spec.no_python or spec.run_path):
        other = "--no-python" if spec.no_python else "--run-path"
        raise UsageError(f"-m and {other} are mutually exclusive", hint="-m means python -m SCRIPT")
    if spec.run_path and spec.no_python:
        notes.append("--no-python has no effect, because --run-path takes precedence")
    is_asked = spec.preload not in ((), (BACKGROUND,))
    if is_asked or spec.keep_warm is not None:
        asked = "preload" if is_asked else "keep-warm"
        notes += [
            f"--{asked} has no effect with --{flag}, where each worker imports its modules itself"
            for flag in ("no-python", "run-path", "numa-binding")
            if getattr(spec, flag.replace("-", "_"))
        ]


def _check_logs(spec: LaunchSpec, notes: list[str]) -> None:
    if spec.record_group and not spec.keeps_logs():
        raise UsageError(
            "--record-group writes to events.jsonl, but this job has no log files",
            hint="add --log-dir=DIR",
        )
    if spec.log_dir.startswith("~"):
        notes.append(
            f"--log-dir={spec.log_dir} is a directory below this one: shells replace ~ only at the "
            "beginning of a word"
        )
    if spec.log_dir == "/dev/null" and (spec.redirects.any() or spec.tee.any()):
        notes.append("--redirects and --tee have no effect with --log-dir=/dev/null")
    for name in ("stdout", "stderr"):
        bit = STDOUT if name == "stdout" else STDERR
        filters = getattr(spec, f"duplicate_{name}_filters")
        teed = [spec.tee.default, *(bits for _, bits in spec.tee.by_rank)]
        if filters and not any(bits & bit for bits in teed):
            notes.append(
                f"--duplicate-{name}-filters has no effect, because no {name} is tee'd (--tee)"
            )


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return the variables with relight's or torchrun's prefix that relight does not read."""
    own = ("RELIGHT_", "PET_")
    return [name for name in names if name.startswith(own) and name not in _KNOWN_VARIABLES]


def check_ranks(spec: LaunchSpec, local_world_size: int) -> list[str]:
    """Return a note for each flag that refers to a local rank that doesn't exist on this node."""
    notes = []
    for flag, ranks in (
        ("--redirects", [rank for rank, _ in spec.redirects.by_rank]),
        ("--tee", [rank for rank, _ in spec.tee.by_rank]),
        ("--local-ranks-filter", list(spec.local_ranks_filter)),
    ):
        missing = [str(rank) for rank in ranks if rank >= local_world_size]
        if missing:
            notes.append(
                f"{flag} names local rank {', '.join(missing)}; "
                f"this node has 0 to {local_world_size - 1}"
            )
    return notes
