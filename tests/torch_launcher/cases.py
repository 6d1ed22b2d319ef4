"""Run the cases with one of the launchers, `torch` or `relight`, and print a line for each."""

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import functions

if sys.argv[1] == "torch":
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
else:
    from relight.torch_launcher import ChildFailedError, LaunchConfig, elastic_launch

SHELL = "test $RANK = 0 && exec sleep 600"


def config(**fields: Any) -> Any:
    defaults = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "rdzv_backend": "c10d",
                "rdzv_endpoint": "localhost:0", "run_id": "run", "max_restarts": 0,
                "monitor_interval": 0.02, "start_method": "fork"}  # fmt: skip
    return LaunchConfig(**{**defaults, **fields})


def result_of(run: Callable[[], dict[int, Any]]) -> Any:
    """Return the result or the error, reduced to the launchers' required common part."""
    try:
        return sorted(run().items())
    except ChildFailedError as error:
        return [error.name, error.get_first_failure()[0], [
            [rank, each.local_rank, each.exitcode, each.signal_name(),
             type(each.timestamp).__name__, len(each.timestamp_isoformat()), told(each.message)]
            for rank, each in sorted(error.failures.items())
        ]]  # fmt: skip


def told(message: Any) -> Any:
    if not isinstance(message, str):
        last = message["extraInfo"]["py_callstack"].splitlines()[-1]
        return [message["message"], last, int(message["extraInfo"]["timestamp"]) > 0]
    return message.partition(" by PID")[0] if message.startswith("Signal") else "another text"


def two_nodes(backend: str, run: Callable[[Any], dict[int, Any]]) -> Any:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{sock.getsockname()[1]}"
    results: list[Any] = []
    threads = []
    for node in range(2):
        more = {"rdzv_configs": {"rank": node, "timeout": 180}} if backend == "static" else {}
        own = config(min_nodes=2, max_nodes=2, rdzv_backend=backend, rdzv_endpoint=endpoint, **more)
        threads.append(
            threading.Thread(target=lambda own=own: results.append(result_of(lambda: run(own))))
        )
        threads[-1].start()
    for thread in threads:
        thread.join()
    return sorted(results)


def main() -> None:
    logging.disable()
    settings, static = config(), {"rdzv_backend": "static", "rdzv_endpoint": "127.0.0.1:0"}
    tell, fail = "local-${local_rank}", f"{SHELL}; exit 3"
    cases: dict[str, tuple[Any, ...]] = {
        "arguments": (settings, functions.tell, 1, tell, [2]),
        "exception": (settings, functions.fail, 3),
        "signal": (settings, functions.die),
        "sys.exit(0)": (settings, functions.leave, 0),
        "sys.exit(3)": (settings, functions.leave, 3),
        "restart": (config(max_restarts=2), functions.succeed_later),
        "program": (settings, "sh", "-c", "exit 0", 5),
        "program that fails": (settings, "sh", "-c", fail),
        "Python": (config(nproc_per_node=1), sys.executable, "-u", "-c", "exit(4)"),
        "static": (config(rdzv_configs={"rank": 0}, **static), functions.rank),
    }
    for name, (own, entrypoint, *args) in cases.items():
        launch = elastic_launch(own, entrypoint)
        print(json.dumps([name, result_of(partial(launch, *args))]), flush=True)
    for backend in ("c10d", "static"):
        found = two_nodes(backend, lambda own: elastic_launch(own, "sh")("-c", "exit 0"))
        print(json.dumps([f"two nodes, {backend}", found]), flush=True)
    if sys.argv[1] == "torch":
        both_at_once()
    else:
        assert "torch" not in sys.modules


def both_at_once() -> None:
    """The drop-in accepts torch's configuration; it raises torch's errors if torch is imported."""
    from relight import torch_launcher

    launch = torch_launcher.elastic_launch(config(), functions.fail)
    print(json.dumps(["torch's config", result_of(partial(launch, 3))]), flush=True)
    torch_launcher.replace_torchs()
    from torch.distributed import run

    # The parent changes its name once it has started workers.
    named = "until grep 'worker spawner' /proc/$PPID/comm; do sleep 0.1; done"
    run.main(["--nproc-per-node=2", "--no-python", "sh", "-c", named])


if __name__ == "__main__":
    main()
