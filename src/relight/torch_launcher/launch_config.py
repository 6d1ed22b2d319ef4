"""The settings of a launch, and their conversion to flags of `relight run`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from relight.api.embedding import RunSpec
from relight.base import env as environment
from relight.base.errors import UsageError
from relight.flags.rdzv_conf import KEYS

_TIMEOUT_S = 900
"""torch's default value of rdzv_configs["timeout"]."""
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "rdzv_configs": ((Mapping,), "values by name"),
    "signals_to_handle": ((str,), "names such as 'SIGTERM,SIGINT'"),
    "duplicate_stdout_filters": ((list, tuple, type(None)), "a list of strings"),
    "duplicate_stderr_filters": ((list, tuple, type(None)), "a list of strings"),
    "virtual_local_rank": ((bool,), "True or False"),
}
"""Fields that the launcher reads before `relight run` validates their values, with their types."""
_HANDLERS = ("console", "dynamic_rendezvous", "null")


class DefaultLogsSpecs:
    """The destinations of worker output, equivalent to torch's class with the same name.

    Args:
        log_dir: the directory for log files. If neither this nor `redirects` or `tee` is set, no
            logs are kept.
        redirects: streams that are written to files only. The value is 0 (none), 1 (stdout), 2
            (stderr) or 3 (both), or a mapping from local ranks to these values.
        tee: streams that are written to files and to the console, in the same format.
        local_ranks_filter: the local ranks that are shown on the console, or None for all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: int | Mapping[int, int] = 0,
        tee: int | Mapping[int, int] = 0,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @property
    def root_log_dir(self) -> str:
        """The directory for log files, as a string."""
        return str(self._root_log_dir)


@dataclass
class LaunchConfig:
    """The settings for a launch. The fields and defaults are the same as in torch's class with the
    same name. In torch, `exit_barrier_timeout` only exists in versions after 2.15.

    relight ignores `start_method`, `monitor_interval` and `metrics_cfg`.

    Raises:
        ValueError: if shutdown_timeout is negative or not a number.
        UsageError: if rdzv_configs is not a mapping.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    exit_barrier_timeout: float | None = None

    def __post_init__(self) -> None:
        _check_type("rdzv_configs", self.rdzv_configs)
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        self.rdzv_configs.setdefault("timeout", _TIMEOUT_S)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        env = environment.read()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        if self.exit_barrier_timeout is None:
            text = env.get("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "300")
            self.exit_barrier_timeout = float(text)
        for name in ("shutdown_timeout", "exit_barrier_timeout"):
            value = getattr(self, name)
            if not isinstance(value, Real) or value < 0:
                raise ValueError(f"{name}={value!r}: expected 0 or more seconds")


def check(config: Any) -> None:
    """Check the fields that are read before `relight run` validates their values.

    Raises:
        UsageError: if one is missing or has the wrong type.
    """
    for name in _TYPES:
        if not hasattr(config, name):
            raise UsageError(f"{config!r} has no {name}; expected a LaunchConfig")
        _check_type(name, getattr(config, name))


def _check_type(name: str, value: Any) -> None:
    types, expected = _TYPES[name]
    if not isinstance(value, types):
        raise UsageError(f"{name}={value!r}: expected {expected}")


def to_spec(config: Any, script: str, args: Sequence[str], *flags: str) -> RunSpec:
    """Convert a configuration to the specification of a job."""
    conf = {name: str(value) for name, value in config.rdzv_configs.items()}
    if not any(key.name == "timeout" and config.rdzv_backend in key.backends for key in KEYS):
        conf.pop("timeout", None)  # torch passes it to all backends
    if (barrier_s := getattr(config, "exit_barrier_timeout", None)) is not None:
        conf.setdefault("exit_barrier_timeout", str(barrier_s))
    own = {
        "role": config.role,
        "rdzv-conf": ",".join(f"{name}={value}" for name, value in conf.items()),
        "local-addr": config.local_addr,
        "signals-to-handle": config.signals_to_handle,
        "shutdown-timeout": config.shutdown_timeout,
        "duplicate-stdout-filters": ",".join(config.duplicate_stdout_filters or ()),
        "duplicate-stderr-filters": ",".join(config.duplicate_stderr_filters or ()),
        "log-line-prefix-template": config.log_line_prefix_template,
        "numa-binding": _numa(config.numa_options),
        **_logs(config.logs_specs),
    }
    if config.event_log_handler in _HANDLERS:
        own["event-log-handler"] = config.event_log_handler
    words = [f"--{name}={value}" for name, value in own.items() if value not in (None, "")]
    variables = environment.read().variables
    theirs = {name: text for name, text in variables.items() if name.startswith("TORCHELASTIC_")}
    return RunSpec(
        script,
        args,
        nproc_per_node=config.nproc_per_node,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        max_restarts=config.max_restarts,
        rdzv_backend=config.rdzv_backend,
        rdzv_endpoint=config.rdzv_endpoint,
        rdzv_id=config.run_id,
        env=theirs,
        flags=[*words, *["--virtual-local-rank"] * config.virtual_local_rank, *flags],
    )


def _logs(specs: Any) -> dict[str, str]:
    """Convert a DefaultLogsSpecs object, from torch or from this module, to flags.

    Raises:
        UsageError: if the object is an instance of a different class.
    """
    torchs = getattr(
        sys.modules.get("torch.distributed.elastic.multiprocessing.api"), "DefaultLogsSpecs", ()
    )
    if not isinstance(specs, (DefaultLogsSpecs, torchs)):
        raise UsageError(
            f"logs_specs={specs!r}: only DefaultLogsSpecs is supported",
            hint="set its log_dir, redirects, tee and local_ranks_filter",
        )
    ranks = specs._local_ranks_filter or ()
    return {
        "log-dir": specs._root_log_dir or "",
        "redirects": _streams(specs._redirects),
        "tee": _streams(specs._tee),
        "local-ranks-filter": ",".join(map(str, sorted(ranks))),
    }


def _numa(options: Any) -> str:
    """Convert torch's NumaOptions to a flag.

    Raises:
        UsageError: if the value has a different type.
    """
    if options is None:
        return ""
    mode = getattr(getattr(options, "affinity_mode", None), "value", None)
    if not isinstance(mode, str):
        raise UsageError(f"numa_options={options!r}: expected torch's NumaOptions, or None")
    return mode


def _streams(choice: int | Mapping[int, int]) -> str:
    if isinstance(choice, Mapping):
        return ",".join(f"{rank}:{int(bits)}" for rank, bits in choice.items())
    return str(int(choice))
