"""`relight.submit` and `relight.map` run a function as a scheduler job and return a future for it.

    trials = relight.map(train, [0.1, 0.01, 0.001], scheduler="slurm", resources={"gpu": 1})
    for trial in concurrent.futures.as_completed(trials):
        print(trial.result())

The job runs `relight run`, whose workers load the pickled call from the job's directory, as with
`relight.launch`.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from relight.api import function_hosts
from relight.api.function import (
    WORKER,
    check_call,
    check_list,
    check_number,
    check_texts,
    function_name,
    job_variables,
    pack,
    put,
)
from relight.api.futures import ROLE, SLURM, Future, Place, Started, call_directory, watch
from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.base.text import did_you_mean, pluralize
from relight.flags import site
from relight.flags.arguments import parse, to_spec
from relight.host import devices
from relight.host.files import make_directories, remove_tree
from relight.job import records
from relight.job.app import AppDef, Resource, Role, unspecified
from relight.job.resources import named_resources
from relight.runner.runner import Runner
from relight.worker import main_module

_SCHEDULERS = ("local", SLURM, "ssh")
_INDEX = "SLURM_ARRAY_TASK_ID"


class _Options(NamedTuple):
    """The keyword arguments of `submit` that describe the job."""

    scheduler: str = ""
    nproc_per_node: int | str = 1
    nnodes: int | str = 1
    max_restarts: int = 0
    max_retries: int = 0
    env: Mapping[str, str] | None = None
    flags: Sequence[str] = ()
    resources: Mapping[str, int] | str | None = None
    cfg: Mapping[str, Any] | None = None
    hosts: Sequence[str] = ()


def submit(
    function: Callable[..., Any],
    *args: Any,
    scheduler: str = "",
    nproc_per_node: int | str = 1,
    nnodes: int | str = 1,
    max_restarts: int = 0,
    max_retries: int = 0,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    resources: Mapping[str, int] | str | None = None,
    cfg: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
    **kwargs: Any,
) -> Future:
    """Start a job that calls `function(*args, **kwargs)` on every worker, and return its future.

    A job on Slurm outlives this process, and `relight.attach(future.handle)` returns a new future
    for it. A job on this machine or over ssh is stopped when this process exits, unless `cfg` has
    `"detach": True`.

    Args:
        function: the function to call, as for `relight.launch`.
        args: passed to the function.
        scheduler: `local`, `slurm`, `ssh` or `auto`. The default is the scheduler in the settings,
            or `local` if none is set.
        nproc_per_node: number of workers per node, or a keyword that `--nproc-per-node` accepts.
        nnodes: number of nodes, on Slurm.
        max_restarts: number of times to restart the workers after failures.
        max_retries: how often the scheduler may requeue the job, for example after a time limit.
        env: variables for the workers.
        flags: more `relight run` flags.
        resources: resources for each node: `{"cpu": 8, "gpu": 1, "memMB": 32000}`, or a named
            resource.
        cfg: the scheduler's options, such as `{"partition": "gpu", "time": "4:00:00"}`.
        hosts: run on these hosts over ssh.
        kwargs: passed to the function. Names similar to the ones above are rejected, as in
            `relight.launch`.

    Raises:
        UsageError: if an argument is invalid, or can't be pickled. Nothing was started.
        MachineError: if the scheduler can't start the job.
    """
    __tracebackhide__ = True  # IPython and pytest then show the caller's own line
    options = _Options(scheduler, nproc_per_node, nnodes, max_restarts, max_retries, env, flags,
                       resources, cfg, hosts)  # fmt: skip
    return _start("submit", function, [args], kwargs, options)[0]


def map(
    function: Callable[..., Any], *iterables: Any, at_once: int | None = None, **kwargs: Any
) -> list[Future]:
    """Start a job for each item of one or more iterables, like the built-in `map`, and return the
    futures in the same order.

    On Slurm, the jobs form one job array. On this machine and over ssh, the next job starts when
    another one ends, which requires this process to keep running.

    Args:
        function: called with one item from each iterable, plus the keyword arguments.
        iterables: one or more iterables of equal length.
        at_once: how many jobs run concurrently. On this machine, the default is the number that
            fits its CPUs, or its GPUs if `resources` requests any; each job then sees only its own
            GPUs. Over ssh, the default is one job per host, or per group of `nnodes` hosts.
        kwargs: `scheduler`, `resources` and so on, as for `submit`. All other names are passed to
            the function.

    Raises:
        UsageError: if an argument is invalid, or can't be pickled. Nothing was started.
        MachineError: if the scheduler can't start the jobs.
    """
    __tracebackhide__ = True
    for each in iterables:
        try:
            iter(each)
        except TypeError:
            raise UsageError(
                f"relight.map: {each!r} is not iterable",
                hint="pass a list with one item per job, as for the built-in map",
            ) from None
    columns = [list(each) for each in iterables]
    if len({len(each) for each in columns}) != 1:
        lengths = ", ".join(str(len(each)) for each in columns) or "none"
        raise UsageError(f"relight.map: expected iterables of equal length, got {lengths}")
    if at_once is not None:
        check_number("at_once", at_once, least=1)
    own = {name: kwargs.pop(name) for name in _Options._fields if name in kwargs}
    items = list(zip(*columns, strict=True))
    return _start("map", function, items, kwargs, _Options(**own), at_once)


def _start(
    caller: str,
    function: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    kwargs: Mapping[str, Any],
    options: _Options,
    at_once: int | None = None,
) -> list[Future]:
    main_module.refuse_while_importing(caller)
    for args in calls:
        check_call(function, args, kwargs, submit)
    jobs = _Jobs(caller, function_name(function), options)
    places = deque(jobs.places(at_once))
    packed = [pack(function, args, kwargs, options.hosts) for args in calls]
    if not packed:
        return []
    if jobs.kind == SLURM:
        found = jobs.on_slurm(packed, at_once)
    else:
        starts = [partial(jobs.start, each) for each in packed]
        found = [Future(jobs.runner, jobs.name, start, places) for start in starts]
    try:
        for future in found:
            future.start_if_possible()
    except BaseException:
        for future in found:
            future.cancel()
        raise
    watch(jobs.scheduler, found)
    return found


class _Jobs:
    """Starts the jobs for one call of `submit` or `map`.

    Raises:
        UsageError: if an argument is invalid.
    """

    def __init__(self, caller: str, name: str, options: _Options) -> None:
        self.name, self._options, self._is_map = name, options, caller == "map"
        self._nodes = check_number("nnodes", options.nnodes, least=1)
        check_number("max_retries", options.max_retries, least=0)
        self._env = {} if options.env is None else options.env
        check_texts(options.flags, self._env)
        check_list("hosts", options.hosts)
        self._cfg = {} if options.cfg is None else options.cfg
        if not isinstance(self._cfg, Mapping):
            raise UsageError(f"cfg={self._cfg!r}: expected a dict of options")
        self._resource = _resource(options.resources)
        self.runner = Runner()
        asked = options.scheduler or ("ssh" if options.hosts else "")
        self.scheduler = self.runner.scheduler_name(asked)
        self.kind = self.runner.scheduler(self.scheduler).name
        self._values = self.runner.resolve_cfg(self.scheduler, self._cfg)
        self._check()
        self._flags = [f"--nproc-per-node={options.nproc_per_node}",
                       f"--max-restarts={options.max_restarts}",
                       *["--tee=3"] * (str(options.nproc_per_node) != "1"),
                       *["--standalone"] * (self._nodes == 1 and self.kind != "ssh"),
                       *options.flags]  # fmt: skip
        env = Environment({**job_variables(), **self._env})
        parsed = parse([*self._flags, "-m", WORKER], env, site=site.load(env))
        if parsed.command != (WORKER,):
            raise UsageError(f"flags={[*options.flags]!r}: {parsed.command[0]!r} is not a flag")
        to_spec(parsed)

    def _check(self) -> None:
        kind, hosts = self.kind, self._options.hosts
        if kind not in _SCHEDULERS:
            raise UsageError(
                f"functions run on {', '.join(_SCHEDULERS)}, not on {self.scheduler}",
                hint="relight submit runs scripts there",
            )
        if kind == "ssh" and not hosts:
            raise UsageError("scheduler=ssh needs hosts", hint="hosts=['node1', 'user@node2']")
        if kind != "ssh" and hosts:
            raise UsageError(f"hosts={[*hosts]!r}: scheduler={self.scheduler} takes no hosts")
        if kind == "local" and self._nodes > 1:
            raise UsageError(
                f"nnodes={self._nodes}: scheduler=local has only one node, this machine"
            )
        for name in ("array", "image", "hostfile", "sync", "workspace"):
            if self._values.get(name):
                hint = "relight.map creates the array itself" if name == "array" else ""
                raise UsageError(f"functions can't use the option {name}", hint=hint)

    def places(self, at_once: int | None) -> list[Place]:
        """Return the slots in which jobs run concurrently. The list is empty for Slurm, which does
        its own queueing.
        """
        if self.kind == SLURM:
            return []
        if not self._is_map and self._nodes == 1:
            return [Place({"hosts": [*self._options.hosts]} if self.kind == "ssh" else {})]
        if self.kind == "ssh":
            what, names, size = "host", [*self._options.hosts], self._nodes
        elif self._resource.gpu > 0:
            what, names, size = "GPU", devices.gpu_names(self.runner.env), self._resource.gpu
        else:
            workers = str(self._options.nproc_per_node)
            usual = devices.cpus() // int(workers) if workers.isdecimal() else 1
            return [Place()] * (at_once or max(1, usual))
        groups = [names[each : each + size] for each in range(0, len(names) - size + 1, size)]
        if len(groups) < (at_once or 1):
            jobs, needed = at_once or 1, pluralize((at_once or 1) * size, what)
            raise UsageError(f"at_once={jobs} needs {needed}, but there are only {len(names)}")
        if what == "host":
            found = [Place({"hosts": group}) for group in groups]
        else:
            found = [Place({}, {"CUDA_VISIBLE_DEVICES": ",".join(group)}) for group in groups]
        return found[:at_once]

    def start(self, packed: bytes, place: Place) -> Started:
        """Start the job for one call."""
        return self._submitted(place, {"": packed})

    def on_slurm(self, packed: Sequence[bytes], at_once: int | None) -> list[Future]:
        """Start a job or, for `map`, a job array."""
        array = f"0-{len(packed) - 1}" + (f"%{at_once}" if at_once else "")
        place = Place({"array": array}) if self._is_map else Place()
        parts = {str(number) if self._is_map else "": each for number, each in enumerate(packed)}
        handle, directory, _ = self._submitted(place, parts)
        jobs = [Started(f"{handle}_{part}" if part else handle, os.path.join(directory, part))
                for part in parts]  # fmt: skip
        return [Future(self.runner, self.name, job) for job in jobs]

    def _submitted(self, place: Place, parts: Mapping[str, bytes]) -> Started:
        """Write the calls to subdirectories of the job's directory, and submit the job."""
        app_id = records.new_id(self.name)
        directory = call_directory(app_id, self._values, os.getcwd())
        cfg, env = {**self._cfg, **place.cfg}, {**self._env, **place.env}
        word = function_hosts.attach_marker(app_id) if self.kind == "ssh" else ""
        if word:
            role = function_hosts.make_role(ROLE, word, self._flags, len(cfg["hosts"]), env)
            cfg["workspace"] = directory
        else:
            args = ["-m", "relight", "run", *self._flags, "-m", WORKER, directory]
            args += [_INDEX] if "array" in cfg else []
            role = Role(ROLE, "", entrypoint=sys.executable, args=args, env=env,
                        num_replicas=self._nodes)  # fmt: skip
        role.max_retries, role.resource = self._options.max_retries, self._resource
        app = AppDef(self.name, [role])
        prepared = self.runner.dryrun(app, scheduler=self.scheduler, cfg=cfg, app_id=app_id)
        try:
            for part, packed in parts.items():
                make_directories(os.path.join(directory, part), 0o700)
                put(packed, os.path.join(directory, part))
            handle = self.runner.submit(prepared)
        except BaseException as error:
            remove_tree(os.path.dirname(directory))
            if isinstance(error, OSError):
                why = f"can't write {error.filename}: {error.strerror}"
                raise MachineError(why, hint="RELIGHT_STATE_DIR, or cfg={'job_dir': …}") from None
            raise
        return Started(handle, directory, word)


def _resource(given: Mapping[str, int] | str | None) -> Resource:
    if isinstance(given, str):
        return named_resources[given]
    if not isinstance(given, Mapping | None):
        raise UsageError(f"resources={given!r}: expected a dict or a named resource")
    found, names = unspecified(), ("cpu", "gpu", "memMB")
    for name, value in (given or {}).items():
        if name not in names:
            hint = did_you_mean(str(name), names, f"resources has {', '.join(names)}")
            raise UsageError(f"resources: unknown {name!r}", hint=hint)
        setattr(found, name, check_number(f"resources: {name}", value, least=0))
    return found
