"""`relight.launch`: a function on every worker, from a script or a notebook.

    import relight
    losses = relight.launch(train, 0.1, epochs=3, nproc_per_node=4)

It runs `relight run` in a process of its own, so everything said of that holds: restarts, failure
reports, nothing left behind. The function and its arguments travel as a pickle.
"""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from relight import env as environment
from relight.errors import RelightError, UsageError, WorkersFailedError
from relight.worker import call

R = TypeVar("R")


class RemoteTraceback(Exception):  # noqa: N818  # as multiprocessing calls it
    """The traceback of an exception in a worker, as its cause; its text is the whole of it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def launch(
    function: Callable[..., R],
    *args: Any,
    nproc_per_node: int | str = 1,
    nnodes: int = 1,
    max_restarts: int = 0,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ssh: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> list[R]:
    """Call `function(*args, **kwargs)` on every worker and return the results by rank.

    In a worker, RANK, WORLD_SIZE, MASTER_ADDR and the rest are set as `relight run` sets them. What
    workers print appears on this process's `sys.stdout` and `sys.stderr`. Ctrl-C stops them all,
    and so does the end of this process, whatever ends it.

    Args:
        function: what to call. One that is defined in `__main__`, or inside another one, needs
            `pip install 'relight[notebook]'` (cloudpickle).
        args: passed on.
        nproc_per_node: workers of each node, or a word as for `--nproc-per-node`.
        nnodes: agents, all on this machine; with `hosts`, their number.
        max_restarts: restarts of the job after failures.
        env: variables for the workers beside those of this process.
        flags: more flags of `relight run`.
        hosts: one agent each, started over ssh: `node1`, `user@node2:2222`. Workers there have the
            environment of their host and `env`; modules that the function needs must be there.
        ssh: options of the ssh scheduler, by name (`relight schedulers ssh`).
        kwargs: passed on.

    Returns:
        What each rank has returned, in the order of ranks.

    Raises:
        Exception: what the function has raised on the rank that failed first, with its traceback
            as the cause.
        WorkersFailedError: a worker failed otherwise, such as by a signal.
        UsageError: the function or an argument can't be pickled, or a flag is wrong.
    """
    if nnodes < 1:
        raise UsageError(f"nnodes={nnodes}: there must be at least 1 node")
    if hosts and nnodes not in (1, len(hosts)):
        raise UsageError(f"nnodes={nnodes}, and there are {len(hosts)} hosts: one node each")
    if ssh and not hosts:
        raise UsageError("ssh has no effect without hosts")
    variables = {**environment.read().variables, **(env or {})}
    for name in [name for name in variables if name.startswith(("PET_", "TORCHELASTIC_"))]:
        del variables[name]  # of the job around this one, if there is one
    try:
        payload = call.dumps((function, args, kwargs))
        pickle.loads(payload)  # noqa: S301
    except Exception as error:
        raise UsageError(
            f"{getattr(function, '__qualname__', function)} and its arguments can't be sent to "
            f"workers: {error}",
            hint="pip install 'relight[notebook]' for functions that no module has; open files, "
            "locks and sockets can't travel",
        ) from None
    with tempfile.TemporaryDirectory(prefix="relight-launch-") as directory:
        with open(os.path.join(directory, "call.pickle"), "wb") as file:
            pickle.dump((bool(hosts), sys.path, payload), file)
        asked = [f"--nproc-per-node={nproc_per_node}", f"--max-restarts={max_restarts}"]
        if hosts:
            from relight import function_hosts

            words = [*asked, *flags]
            exit_codes = function_hosts.run(directory, words, hosts, env or {}, ssh or {})
        else:
            program = [sys.executable, "-m", "relight", "run"]
            script = ["-m", "relight.worker.call", directory]
            command = [*program, *asked, *_meeting(nnodes), *flags, *script]
            exit_codes = _run([command] * nnodes, variables)
        return _results(directory, exit_codes)


def _meeting(nnodes: int) -> list[str]:
    if nnodes == 1:
        return ["--standalone"]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-id=launch-{os.getpid()}"]  # fmt: skip


def _run(commands: Sequence[Sequence[str]], variables: Mapping[str, str]) -> list[int]:
    """Run agents to their end; show what they print; return their exit codes."""
    agents: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        for command in commands:
            agents.append(_start(command, variables))
            for source, name in ((agents[-1].stdout, "stdout"), (agents[-1].stderr, "stderr")):
                readers.append(threading.Thread(target=_show, args=(source, name), daemon=True))
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


def _start(command: Sequence[str], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    guard = ("-c", _GUARD.format(parent=os.getpid()))
    return subprocess.Popen(
        [command[0], *guard, *command[1:]],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to pass on, once
    )


_GUARD = """
import signal, sys
from relight.host import system
if not system.end_with_parent({parent}, signal.SIGTERM):
    sys.exit(143)
sys.argv[:] = ["relight", *sys.argv[3:]]
from relight.cli.main import entry
entry()
"""
"""Ends an agent with this process; not done after the fork, where threads may have held locks."""


def _show(source: Any, name: str) -> None:
    """Copy to the stream as it is now, which is the notebook's cell in a notebook."""
    with source:
        for line in source:
            stream = getattr(sys, name)
            stream.write(line.decode(errors="replace"))
            stream.flush()


def _results(directory: str, exit_codes: Sequence[int]) -> list[Any]:
    """Return what was kept by rank, or raise what happened."""
    names = os.listdir(directory)
    if any(exit_codes):
        errors = [_load(directory, name) for name in names if name.endswith("." + call.ERROR)]
        if errors:
            *_, error, text = min(errors, key=lambda each: tuple(each[:2]))
            if error is None:
                raise WorkersFailedError(text.strip().splitlines()[-1]) from RemoteTraceback(text)
            raise error from RemoteTraceback(text)
        code = next(code for code in exit_codes if code)
        raise (UsageError if code == UsageError.exit_code else WorkersFailedError)(
            f"relight run ended with exit code {code}; what it printed says why"
        )
    ranks = sorted(
        int(name.partition(".")[0]) for name in names if name.endswith("." + call.RESULT)
    )
    return [_load(directory, f"{rank}.{call.RESULT}") for rank in ranks]


def _load(directory: str, name: str) -> Any:
    with open(os.path.join(directory, name), "rb") as file:
        try:
            return pickle.load(file)  # noqa: S301  # written by our own workers
        except Exception as error:
            raise RelightError(f"what {name} holds can't be read here: {error}") from None
