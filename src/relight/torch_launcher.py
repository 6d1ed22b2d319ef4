"""A drop-in replacement for torch.distributed.launcher: `elastic_launch(LaunchConfig(…),
entrypoint)(*args)`.

    from relight.torch_launcher import LaunchConfig, elastic_launch
    results = elastic_launch(LaunchConfig(1, 1, 4, rdzv_backend="c10d"), train)(0.1)

Arguments, results and errors match torch 2.13 (`torch/distributed/launcher/api.py`,
`torch/distributed/elastic/multiprocessing/errors`); docs/embedding.md lists the differences.
torch's own LaunchConfig also works, because only the field names matter. This module doesn't import
torch. If the caller has imported torch, errors are also instances of torch's classes, so that
`except` clauses catch them.

    python -m relight.torch_launcher accelerate launch … train.py

runs a program that itself calls torch's launcher, but with this launcher instead.
"""

import contextlib
import importlib
import os
import runpy
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from numbers import Real
from types import FrameType, ModuleType
from typing import Any

from relight.api import function_results
from relight.api.embedding import RunResult, RunSpec, run
from relight.api.function import WORKER, function_name, job_directory, pack, put, warm_flags
from relight.base import env as environment
from relight.base.errors import UsageError, WorkersFailedError, signal_name
from relight.base.values import parse_signals
from relight.core.failure import Failure
from relight.rendezvous.conf import KEYS
from relight.worker import main_module
from relight.worker.call import CALL_DIRECTORY, WithLocalRank

_TIMEOUT_S = 900
"""torch's default value of rdzv_configs["timeout"]."""
_NOT_AVAILABLE = "<N/A>"
_CALLED_FROM = (
    "torch.distributed.launcher.api", "torch.distributed.launcher", "torch.distributed.run",
)  # fmt: skip
"""The torch modules from which programs import `elastic_launch`."""
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "rdzv_configs": ((Mapping,), "values by name"),
    "signals_to_handle": ((str,), "names such as 'SIGTERM,SIGINT'"),
    "duplicate_stdout_filters": ((list, tuple, type(None)), "a list of strings"),
    "duplicate_stderr_filters": ((list, tuple, type(None)), "a list of strings"),
    "virtual_local_rank": ((bool,), "True or False"),
}
"""Fields that this module reads before `relight run` validates their values, with their types."""
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


@dataclass
class ProcessFailure:
    """A worker's failure. The fields are the same as in torch's class with the same name.

    `error_file` is always `<N/A>`, because the file's content is in `error_file_data`. The
    `message` field is either a string, or describes an exception as `{"message": …, "extraInfo":
    {"py_callstack": …, "timestamp": …}}`. The `timestamp` field is in seconds since 1970.
    The `exitcode` field is negative if a signal ended the worker.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any]
    message: Any
    timestamp: int

    def signal_name(self) -> str:
        """Return the name of the signal that ended the worker, or `<N/A>`."""
        return signal_name(-self.exitcode) if self.exitcode < 0 else _NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the local time of the failure, in the format YYYY-MM-DD_HH:MM:SS."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(Exception):
    """Raised if workers have failed. If the caller has imported torch, the exception is also an
    instance of torch's class with the same name.

    Args:
        name: the entrypoint's name.
        failures: the failures of workers on this node, by rank.
        report: the lines of the failure report.
    """

    def __init__(
        self, name: str, failures: dict[int, ProcessFailure], report: Sequence[str] = ()
    ) -> None:
        Exception.__init__(self, "\n".join([f"{name} FAILED", *report]))
        self.name = name
        self.failures = failures

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank that failed first, and its failure."""
        rank = min(self.failures, key=lambda each: self.failures[each].timestamp)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the message. The delimiter arguments exist for compatibility with torch, and are
        ignored.
        """
        del boarder_delim, section_delim
        return str(self)


class SignalException(Exception):  # noqa: N818  # torch's name
    """Raised if a signal has ended the launch. If the caller has imported torch, the exception is
    also an instance of torch's class with the same name.

    Args:
        msg: the message.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)
        self.sigval = sigval


class elastic_launch:  # noqa: N801  # torch's name
    """Runs a function or a program on each worker of this node.

    Args:
        config: this module's LaunchConfig, or torch's.
        entrypoint: a function or a program. A function is called with the arguments that are passed
            to the instance, and a program receives them as strings.
        health_check_server: must be None, because relight's agents don't run a health check server.
    """

    def __init__(
        self,
        config: Any,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: Any = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the entrypoint until it finishes. Return the result of each worker on this node by
        global rank. For a program, each result is None.

        Raises:
            ChildFailedError: if workers failed.
            SignalException: if the main thread has received one of `signals_to_handle`. The workers
                have exited by then.
            WorkersFailedError: if the job failed because nodes were missing, although no worker
                failed.
            UsageError: if the configuration is invalid. Nothing has been started in this case.
        """
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: Any,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """Equivalent of `elastic_launch(config, entrypoint, health_check_server)(*args)`."""
    main_module.refuse_while_importing()
    if health_check_server is not None:
        raise UsageError(
            "health_check_server is not supported",
            hint="use relight status, or relight.run's events",
        )
    for name in _TYPES:
        if not hasattr(config, name):
            raise UsageError(f"{config!r} has no {name}; expected a LaunchConfig")
        _check_type(name, getattr(config, name))
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
    if isinstance(entrypoint, str):
        words = [str(each) for each in args]
        name = _script_name(words) if entrypoint == sys.executable else entrypoint
        with _signals_raise(config):
            result = run(_spec(config, entrypoint, words, "--no-python"))
        if result.exit_code:
            raise _error(name, result, {}, {each.rank: each for each in result.failures})
        return dict.fromkeys(result.exit_codes)
    if not callable(entrypoint):
        raise UsageError(f"entrypoint={entrypoint!r}: expected a function or a program name")
    return _call(config, entrypoint, args)


def _call(config: Any, function: Callable[..., Any], args: list[Any]) -> dict[int, Any]:
    name = function_name(function)
    if any(isinstance(each, str) and "${local_rank}" in each for each in args):
        function = WithLocalRank(function)
    packed = pack(function, args, {})
    with job_directory() as directory:
        put(packed, directory)
        warm = warm_flags((), environment.read().variables)
        with _signals_raise(config):
            spec = _spec(config, WORKER, [], *warm)
            env = {**spec.env, CALL_DIRECTORY: directory}  # the same arguments on all nodes
            result = run(spec._replace(module=True, env=env))
        raised = function_results.raised(directory)
        if result.exit_code:
            raise _error(name, result, raised, {})
        results = function_results.returned(directory, name)
    # As in torch, sys.exit(0) returns None.
    left = {rank for rank, each in raised.items() if function_results.is_exit_with_0(each.error)}
    missing = sorted(set(result.exit_codes) - set(results) - left)
    if missing:
        raise WorkersFailedError(
            f"ranks {', '.join(map(str, missing))} exited with 0 before {name} returned",
            hint="look for os._exit in it",
        )
    return {rank: results.get(rank) for rank in result.exit_codes}


# Converting the configuration.


def _check_type(name: str, value: Any) -> None:
    types, expected = _TYPES[name]
    if not isinstance(value, types):
        raise UsageError(f"{name}={value!r}: expected {expected}")


def _spec(config: Any, script: str, args: Sequence[str], *flags: str) -> RunSpec:
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


def _script_name(words: Sequence[str]) -> str:
    """Return a Python program's name for use in error messages. It is the first argument that is
    not a flag.
    """
    return next((word for word in words if not word.startswith("-")), "")


# Converting errors.


def _first(result: RunResult) -> Failure | None:
    """Return the first failure on this node or, if there was none, the root cause on another
    node.
    """
    own = sorted(result.failures, key=lambda each: (bool(each.stop_signal), each.at))
    cause = result.cause
    if cause is not None and any((each.rank, each.pid) == (cause.rank, cause.pid) for each in own):
        return cause
    return own[0] if own else cause


def _error(
    name: str,
    result: RunResult,
    raised: Mapping[int, function_results.Raised],
    failures: Mapping[int, Failure],
) -> Exception:
    """Return the exception to raise for a failed job.

    Args:
        name: the entrypoint's name.
        result: the job's result.
        raised: the exceptions that the function raised, by rank.
        failures: failures to report in addition to the first one, by rank. As in torch, all
            failures are reported for a program, but only the first failure for a function.
    """
    first = _first(result)
    if first is None:
        return WorkersFailedError(result.reason)
    error = _class(ChildFailedError, "errors", "ChildFailedError")
    failures = {first.rank: first, **failures}  # the first one wins among equal timestamps
    found = {rank: _failure(each, raised.get(rank)) for rank, each in failures.items()}
    made: Exception = error(name, found, result.report)
    return made


def _failure(failure: Failure, raised: function_results.Raised | None) -> ProcessFailure:
    report = failure.report if failure.is_explained else None
    if raised is not None and isinstance(raised.error, SystemExit):
        raised = None  # as in torch, this is not an error
    timestamp = int(raised.time) if raised else _seconds(failure.when)
    message: Any = ""
    if raised is not None or report is not None:
        text = raised.text if raised else "\n".join(report.lines) if report else ""
        said = text.rstrip().rpartition("\n")[2]
        if report is not None and not raised:
            said = f"{report.type}: {report.message}" if report.type else report.message
        message = {
            "message": said,
            "extraInfo": {"py_callstack": text, "timestamp": str(timestamp)},
        }
    data = {"message": message or "<NONE>"}
    if not message and failure.exitcode < 0:
        name = signal_name(-failure.exitcode)
        message = f"Signal {-failure.exitcode} ({name}) received by PID {failure.pid}"
    return ProcessFailure(
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=failure.exitcode,
        error_file=_NOT_AVAILABLE,
        error_file_data=data,
        message=message or f"exited with {failure.exitcode}; its output may show why",
        timestamp=timestamp,
    )


def _seconds(when: str) -> int:
    """Return the time when a failure occurred, in seconds since 1970."""
    try:
        return int(datetime.strptime(when, "%Y-%m-%d %H:%M:%S%z").timestamp())
    except ValueError:
        return int(time.time())


def _class(own: type[Exception], module: str, name: str) -> Any:
    """Return our exception class or, if the caller has imported torch, a subclass that also derives
    from torch's class.
    """
    found = sys.modules.get(f"torch.distributed.elastic.multiprocessing.{module}")
    theirs = getattr(found, name, None)
    return own if theirs is None else type(name, (own, theirs), {"__doc__": own.__doc__})


@contextlib.contextmanager
def _signals_raise(config: Any) -> Iterator[None]:
    """Raise SignalException when a signal arrives, as torch does. Only the main thread receives
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def fail(number: int, frame: FrameType | None) -> None:
        del frame
        sigval = signal.Signals(number)
        message = f"Process {os.getpid()} got signal: {sigval}"
        raise _class(SignalException, "api", "SignalException")(message, sigval)

    try:
        numbers = parse_signals(config.signals_to_handle)
    except ValueError:
        numbers = ()  # `run` rejects this
    before = {number: signal.signal(number, fail) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Support for programs that call torch's launcher.


def replace_torchs() -> None:
    """Replace `elastic_launch` and `launch_agent` in this process's torch modules.

    This function imports the modules, so it is intended for programs that would import them anyway.

    Raises:
        UsageError: if torch is not installed.
    """
    for name in _CALLED_FROM:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"can't import {name}: {error}") from None
        replace_in(module)


def replace_in(module: ModuleType) -> None:
    """Replace `elastic_launch` and `launch_agent` in a torch module that defines them."""
    for own in (elastic_launch, launch_agent):
        if hasattr(module, own.__name__):
            setattr(module, own.__name__, own)


def main(argv: Sequence[str]) -> None:
    """Run a program with this launcher instead of torch's.

    Args:
        argv: a script, the name of a Python program on PATH, or `-m` and a module, followed by the
            program's arguments.

    Raises:
        UsageError: if the first argument is not something that can be run.
    """
    is_module, words = argv[:1] == ["-m"], list(argv[argv[:1] == ["-m"] :])
    if not words:
        raise UsageError(
            "no program given",
            hint="python -m relight.torch_launcher accelerate launch train.py",
        )
    program = words[0]
    path = program if os.path.isfile(program) else shutil.which(program)
    if not (is_module or path):
        raise UsageError(f"no such script or program: {program}", hint="use -m for a module")
    replace_torchs()
    if is_module:
        sys.argv = words
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [str(path), *words[1:]]
        sys.path[0] = os.path.dirname(os.path.abspath(str(path)))
        runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    try:  # import the module, not the copy that `python -m` created
        importlib.import_module("relight.torch_launcher").main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"relight: error: {error}" + f"\nhint: {error.hint}" * bool(error.hint))
