"""Runs a function or a program on each worker, as torch's `elastic_launch` does."""

import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from relight.api import function_results
from relight.api.embedding import run
from relight.api.function import WORKER, function_name, job_directory, pack, put, warm_flags
from relight.base import env as environment
from relight.base.errors import UsageError, WorkersFailedError
from relight.base.values import parse_signals
from relight.torch_launcher import launch_config
from relight.torch_launcher.launch_config import to_spec
from relight.torch_launcher.launch_errors import SignalException, own_class, to_error
from relight.worker import main_module
from relight.worker.call import CALL_DIRECTORY, WithLocalRank


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
    launch_config.check(config)
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
    if isinstance(entrypoint, str):
        words = [str(each) for each in args]
        script = next((word for word in words if not word.startswith("-")), "")
        name = script if entrypoint == sys.executable else entrypoint
        with _signals_raise(config):
            result = run(to_spec(config, entrypoint, words, "--no-python"))
        if result.exit_code:
            raise to_error(name, result, {}, {each.rank: each for each in result.failures})
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
            spec = to_spec(config, WORKER, [], *warm)
            env = {**spec.env, CALL_DIRECTORY: directory}  # the same arguments on all nodes
            result = run(spec._replace(module=True, env=env))
        raised = function_results.raised(directory)
        if result.exit_code:
            raise to_error(name, result, raised, {})
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
        raise own_class(SignalException, "api")(message, sigval)

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
