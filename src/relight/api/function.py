"""`relight.launch` runs a function on every worker, from a script or a notebook.

    import relight
    losses = relight.launch(train, 0.1, epochs=3, nproc_per_node=4)

This function runs `relight run` in a separate process, so it gives the same guarantees, such as
restarts, failure reports and no leftover processes. The function and its arguments are sent as a
pickle.
"""

import contextlib
import inspect
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from types import FrameType
from typing import Any, TypeVar

from relight.api.function_results import LaunchRefusal, collect
from relight.api.function_results import RemoteTraceback as RemoteTraceback
from relight.base import env as environment
from relight.base.errors import MachineError, UsageError
from relight.base.text import closest_match, did_you_mean
from relight.base.values import MAX_SECONDS, TOKEN, parse_nproc, whole
from relight.flags.spec import FLAGS
from relight.host import scratch
from relight.host.files import remove_tree
from relight.net.ports import bind
from relight.worker import call, cells, main_module

R = TypeVar("R")
WORKER = "relight.worker.call"
"""The module that calls the function in each worker."""
_SIMILAR = 0.85
"""If the function accepts arbitrary keyword arguments, a keyword that is at least this similar to
one of relight's own parameters counts as a misspelling.
"""


def launch(
    function: Callable[..., R],
    *args: Any,
    nproc_per_node: int | str = 1,
    nnodes: int | str = 1,
    max_restarts: int = 0,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ssh: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> list[R]:
    """Call `function(*args, **kwargs)` on every worker and return the results by rank.

    In a worker, variables such as RANK, WORLD_SIZE and MASTER_ADDR have the same values as with
    `relight run`. Worker output appears on this process's `sys.stdout` and `sys.stderr`. All
    workers are stopped on Ctrl-C, or if this process exits for any other reason.

    Args:
        function: the function to call. With cloudpickle installed, this can be any function.
            Without it, the function must be defined in a module or in the script itself, which the
            workers then import; in that case call `launch` under `if __name__ == "__main__":`, as
            with multiprocessing.
        args: passed to the function.
        nproc_per_node: number of workers per node, or a keyword that `--nproc-per-node` accepts.
        nnodes: number of agents, all of which run on this machine. With `hosts`, `nnodes` is the
            number of hosts. The job isn't elastic.
        max_restarts: number of times to restart the job after failures.
        env: variables for the workers, in addition to those of this process.
        flags: more `relight run` flags.
        hosts: hosts such as `node1` or `user@node2:2222`, on each of which one agent is started
            over ssh. Workers there get their host's environment plus `env`; modules that the
            function needs must be installed there. Use only hosts that you trust, because results
            are returned as pickles.
        ssh: ssh scheduler options, by name (see `relight schedulers ssh`).
        kwargs: passed to the function. Unknown names are rejected, as are names similar to the
            parameters above; to pass such a name anyway, use `functools.partial(function, name=…)`.

    Returns:
        The return value of each rank, in rank order.

    Raises:
        Exception: the exception that the function raised on the first rank to fail, with its
            traceback as the cause.
        WorkersFailedError: if a worker failed in another way, for example by a signal, or exited
            with 0 before the function returned.
        UsageError: if an argument is invalid, or can't be pickled. Nothing was started.
    """
    __tracebackhide__ = True  # makes IPython and pytest show the caller's own line
    main_module.refuse_while_importing()
    check_call(function, args, kwargs)
    nodes = check_number("nnodes", nnodes, least=1)
    check_number("max_restarts", max_restarts, least=0)
    try:
        parse_nproc(str(nproc_per_node))
    except ValueError as error:
        raise UsageError(f"nproc_per_node={nproc_per_node!r}: {error}") from None
    check_texts(flags, {} if env is None else env)
    check_list("hosts", hosts)
    if ssh is not None and not isinstance(ssh, Mapping):
        raise UsageError(f"ssh={ssh!r}: expected a dict of options", hint="relight schedulers ssh")
    if hosts and nodes not in (1, len(hosts)):
        raise UsageError(f"nnodes={nodes}, but there are {len(hosts)} hosts; each takes one node")
    if ssh and not hosts:
        raise UsageError("ssh has no effect without hosts")
    variables = {**job_variables(), **(env or {})}
    if nodes > 1:  # so that other users can't join the job
        variables.setdefault(TOKEN, secrets.token_hex(16))
    packed = pack(function, args, kwargs, hosts)
    with job_directory() as directory:
        put(packed, directory)
        asked = [f"--nproc-per-node={nproc_per_node}", f"--max-restarts={max_restarts}"]
        refusal = LaunchRefusal(directory)
        if hosts:
            from relight.api import function_hosts

            words = [*asked, *flags]
            exit_codes = function_hosts.run(directory, words, hosts, env or {}, ssh or {})
        else:
            program = [sys.executable, "-m", "relight", "run"]
            worker = ["-m", WORKER, directory]
            warm = warm_flags(flags, variables)
            command = [*program, *asked, *_meeting(nodes), *warm, *flags, *worker]
            exit_codes = _run([command] * nodes, variables, refusal)
        return collect(directory, function_name(function), exit_codes, refusal)


def pack(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    hosts: Sequence[str] = (),
) -> bytes:
    """Return the pickled call for the workers.

    Raises:
        UsageError: if the call can't be pickled.
    """
    try:
        payload, sources = _dumps((function, args, kwargs))
        check = main_module.Unpickler(payload)
        check.load()
    except Exception as error:
        raise UsageError(
            f"{function_name(function)} and its arguments can't be sent to workers: {error}",
            hint=(
                "pip install cloudpickle for functions defined outside a module; open files, "
                "locks and sockets can't be sent"
            ),
        ) from None
    script = _script(check.of_main, hosts) if check.of_main else None
    return pickle.dumps((bool(hosts), sys.path, script, payload, sources))


def _dumps(value: Any) -> tuple[bytes, cells.Sources]:
    try:
        return cells.dumps(value)
    except ImportError:  # without cloudpickle
        return call.dumps(value), {}


def put(packed: bytes, directory: str) -> None:
    """Write a pickled call to the directory where the job's workers look for it."""
    with open(os.path.join(directory, "call.pickle"), "wb") as file:
        file.write(packed)


def job_variables() -> dict[str, str]:
    """Return the environment variables that a job started by this process inherits. If this process
    is itself a worker, variables set by the outer job are omitted.
    """
    variables = environment.read().variables
    outer = ("PET_", "TORCHELASTIC_")
    return {name: text for name, text in variables.items() if not name.startswith(outer)}


@contextlib.contextmanager
def job_directory() -> Iterator[str]:
    """Create a directory for a job's call and results, and remove it at the end."""
    try:
        path, lock = scratch.make(tempfile.gettempdir())
    except OSError as error:
        raise MachineError(f"can't create a temporary directory: {error}") from None
    try:
        directory = os.path.join(path, "call")  # ssh copies it, so omit the lock file
        os.mkdir(directory, 0o700)
        yield directory
    finally:
        remove_tree(path)
        os.close(lock)


def _script(name: str, hosts: Sequence[str]) -> main_module.MainModule:
    """Return the module in which workers can find the definitions that are in `__main__` in this
    process.
    """
    found = main_module.detect_main_module()
    if hosts:
        why = "which workers on other hosts can't import"
    elif found is None:
        why = "which workers can't import, because it has no file (python -c, stdin, a notebook)"
    else:
        return found
    raise UsageError(
        f"{name} is defined in __main__, {why}",
        hint="pip install cloudpickle, or move it into a module",
    )


def check_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    caller: Callable[..., Any] | None = None,
) -> None:
    """Check these arguments against a function's signature, if it has one.

    Args:
        function: the function.
        args: its arguments.
        kwargs: its keyword arguments.
        caller: the relight function that received the arguments; `launch` by default.

    Raises:
        UsageError: if the arguments don't match the signature, or if a name is similar to one of
            the caller's parameters.
    """
    caller = caller or launch
    parameters = inspect.signature(caller).parameters.values()
    own = tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
    if not callable(function):
        raise UsageError(
            f"{function!r} can't be called: expected a function",
            hint="use `relight run` to start a script",
        )
    name = function_name(function)
    try:
        # A decorator may accept different arguments than the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some extension-module functions lack a signature
        signature = inspect.signature(lambda *_, **__: None)
    known = {p.name for p in signature.parameters.values() if p.kind in _BY_NAME}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for word in kwargs:
        if word in known:
            continue
        if not takes_any:
            raise UsageError(f"{name} takes no {word}", hint=_keyword_hint(word, caller, own))
        if meant := closest_match(word, own, cutoff=_SIMILAR):
            raise UsageError(
                f"{word} would be passed to {name}",
                hint=f"did you mean {meant}? If not: functools.partial({name}, {word}=…)",
            )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None


def _keyword_hint(word: str, caller: Callable[..., Any], own: Sequence[str]) -> str:
    """Return a hint for a keyword that the function does not accept."""
    if word in {flag.field for flag in FLAGS}:
        return f"pass flags of relight run as flags=['--{word.replace('_', '-')}=…']"
    return did_you_mean(word, own, f"relight.{caller.__name__} takes: {', '.join(own)}")


def function_name(function: Callable[..., Any]) -> str:
    """Return a human-readable name for a function."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]


def check_number(name: str, value: int | str, *, least: int) -> int:
    """Validate an integer and return it.

    Raises:
        UsageError: if it isn't an integer, or is less than `least`.
    """
    if isinstance(value, str) and ":" in value:
        raise UsageError(
            f"{name}={value!r}: a function runs on a fixed number of nodes",
            hint="use relight run --nnodes=MIN:MAX for elastic jobs",
        )
    number = whole(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError(f"{name}={value!r}: expected a number")
    if number < least:
        raise UsageError(f"{name}={value!r}: must be at least {least}")
    return number


def check_texts(flags: Sequence[str], env: Mapping[str, str]) -> None:
    """Check that `flags` is a list of strings and that `env` maps strings to strings.

    Raises:
        UsageError: if `flags` or `env` has a different type.
    """
    check_list("flags", flags)
    if not isinstance(env, Mapping):
        raise UsageError(f"env={env!r}: expected a dict of strings", hint="env={'NAME': 'value'}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"env: {name!r} is not a variable name", hint="env={'NAME': 'value'}")
        if not isinstance(value, str):
            raise UsageError(f"env: {name}={value!r}: expected a string", hint=f"'{value}'")
        if "\0" in value:
            raise UsageError(f"env: {name}={value!r}: a variable can't contain a NUL character")


def check_list(name: str, value: Any) -> None:
    """Check that an argument is a list of strings.

    Raises:
        UsageError: if the argument has a different type.
    """
    if isinstance(value, str):
        words = value.replace(",", " ").split() if name == "hosts" else value.split()
        raise UsageError(f"{name}={value!r}: expected a list", hint=f"{name}={words!r}")
    if not isinstance(value, Sequence):
        raise UsageError(f"{name}={value!r}: expected a list of strings")
    for word in value:
        if not isinstance(word, str):
            raise UsageError(f"{name}={value!r}: {word!r} is not a string", hint=f"'{word}'")


def time_limit(name: str, value: Any) -> float | None:
    """Return a time limit in seconds. None and infinity both mean unlimited.

    Raises:
        UsageError: if it isn't a number, isn't positive, or is longer than 23 days.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is None or (is_number and value == float("inf")):
        return None
    if not is_number or not 0 < value <= MAX_SECONDS:
        raise UsageError(
            f"{name}={value!r}: expected seconds, above 0 and at most {MAX_SECONDS:.0f}",
            hint=f"use {name}=None for no limit",
        )
    return float(value)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def warm_flags(flags: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the flags that keep the workers' imports loaded for the next call, as long as this
    process is running. The list is empty if the caller sets such a flag explicitly, or if the
    system doesn't support warm processes.
    """
    names = [flag.lstrip("-").replace("_", "-").partition("=")[0] for flag in flags]
    is_said = any(variables.get(name) for name in ("RELIGHT_PRELOAD", "RELIGHT_KEEP_WARM"))
    if is_said or {"preload", "keep-warm"} & set(names):
        return []
    if sys.platform != "linux":
        return []
    return [f"--keep-warm=while:{os.getpid()}"]


def _meeting(nnodes: int) -> list[str]:
    if nnodes == 1:
        return ["--standalone"]
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-id=launch-{os.getpid()}"]  # fmt: skip


def _run(
    commands: Sequence[Sequence[str]], variables: Mapping[str, str], refusal: LaunchRefusal
) -> list[int]:
    """Run agents until they exit, copying their output, and return their exit codes."""
    agents: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        for command in commands:
            with signals_held():
                agents.append(start_agent(command, variables))
            for source, name in ((agents[-1].stdout, "stdout"), (agents[-1].stderr, "stderr")):
                readers.append(
                    threading.Thread(target=copy_output, args=(source, name, refusal), daemon=True)
                )
                readers[-1].start()
        return [agent.wait() for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in agents:
            agent.wait()
        for reader in readers:
            reader.join()


def start_agent(
    command: Sequence[str],
    variables: Mapping[str, str],
    output: Any = subprocess.PIPE,
    *,
    tell: int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `python -m relight run …` as a child process that exits whenever this process does.

    Args:
        command: the command line.
        variables: its environment.
        output: stdout and stderr, as in subprocess. None means those of this process.
        tell: a descriptor that the agent writes events to (`relight.api.embedding`), or None to
            disable them.
    """
    entry = (
        "entry()" if tell is None else f"from relight.api import embedding; embedding.entry({tell})"
    )
    guard = ("-c", _GUARD.format(parent=os.getpid(), entry=entry))
    return subprocess.Popen(
        [command[0], *guard, *command[1:]],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=() if tell is None else (tell,),
        start_new_session=True,  # this process forwards Ctrl-C once
    )


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Defer this process's signal handlers until the block has finished. Otherwise, if a handler
    raised an exception such as KeyboardInterrupt inside the block, this process would lose track of
    the agent that it is starting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    holds, came = True, list[int]()

    def hold(number: int, frame: FrameType | None) -> None:
        if holds:
            came.append(number)
        else:
            handlers[number](number, frame)

    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers: dict[int, Any] = {n: handler for n, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        holds = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            handlers[number](number, None)


_GUARD = """
import signal, sys
from relight.host import system
if not system.end_with_parent({parent}, signal.SIGTERM):
    sys.exit(143)
sys.argv[:] = ["relight", *sys.argv[3:]]
from relight.__main__ import entry
{entry}
"""
"""Code that makes an agent exit whenever this process does. It can't run between fork and exec,
because other threads may have held locks at the time of the fork.
"""


def copy_output(source: Any, name: str, refusal: LaunchRefusal | None = None) -> None:
    """Copy output to the current `sys` stream. In a notebook, that stream belongs to the running
    cell.
    """
    with source:
        for line in source:
            if name == "stderr" and refusal and refusal.matches(line.decode(errors="replace")):
                continue
            stream = getattr(sys, name)
            with contextlib.suppress(OSError, ValueError):  # closed or broken stream
                stream.write(line.decode(errors="replace"))
                stream.flush()
