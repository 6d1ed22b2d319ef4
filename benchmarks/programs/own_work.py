"""Restarts a program without a launcher, in processes that already have its modules: `python
own_work.py RANKS SCRIPT …`, run by the programs' interpreter in a process group of its own.

Each rank has a process that runs the program in a child (attempt 0) until all ranks have completed
a step, kills it, imports the modules that it had, and forks another child. When all of these are
ready, they run the program (attempt 1). Step 0 in `marks.jsonl` is the time when they begin.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

_FOLDER = sys.prefix


def _child(run: Callable[[], None]) -> int:
    """Run a function in a child process, and return its process ID."""
    if pid := os.fork():
        return pid
    try:
        run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _program(command: list[str], **variables: str) -> None:
    os.environ.update(variables)
    if command[0] == "-m":
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


def _port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def _serve(
    rank: int, files: list[str], ports: list[str], command: list[str], ready: int, go: int
) -> None:
    """Run both attempts of one rank, the second when `go` can be read. Returns if one ends."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), ROLE_RANK=str(rank))
    attempts = [
        {"TORCHELASTIC_RESTART_COUNT": str(number), "MASTER_PORT": port}
        for number, port in enumerate(ports)
    ]
    first = functools.partial(_program, command, STEP_MARKER_MODULES=files[rank], **attempts[0])
    pid = _child(first)
    while not all(map(os.path.exists, files)):  # written at the first step, by `marker.py`
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with open(files[rank]) as file:
        names = json.load(file)
    for name in names:
        with contextlib.suppress(Exception):  # some exist only as part of others
            importlib.import_module(name)
    left = [name for name in names if name not in sys.modules]
    print(f"own work: rank {rank} has its modules, except for {left}", flush=True)
    gc.collect()
    gc.freeze()  # spares the child copies of memory that it only reads

    def second() -> None:
        os.write(ready, b".")
        os.read(go, 1)
        _program(command, **attempts[1])

    os.waitpid(_child(second), 0)


def main() -> None:
    """Restart the program once, and wait until this process is terminated."""
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    is_module = command[0] == "-m"
    sys.argv = command[1:] if is_module else command
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(command[0]))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
        os.environ[name] = str(ranks)
    os.environ.update(
        GROUP_RANK="0", GROUP_WORLD_SIZE="1", ROLE_NAME="default", MASTER_ADDR="127.0.0.1",
        TORCHELASTIC_MAX_RESTARTS="3", TORCHELASTIC_RUN_ID="none",
        TORCHELASTIC_USE_AGENT_STORE="False", TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
    )  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    files = [os.path.join(_FOLDER, f"modules-{rank}.json") for rank in range(ranks)]
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    ports = [_port(), _port()]
    gathered, ready = os.pipe()
    go, begin = os.pipe()
    for rank in range(ranks):
        _child(functools.partial(_serve, rank, files, ports, command, ready, go))
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: os.killpg(0, signal.SIGKILL))  # all processes
    for _ in range(ranks):
        os.read(gathered, 1)
    now = time.time()
    os.write(begin, bytes(ranks))
    with open(os.path.join(_FOLDER, "marks.jsonl"), "a") as file:
        for rank in range(ranks):
            mark = {"time": now, "attempt": 1, "rank": rank, "step": 0}
            file.write(json.dumps(mark) + "\n")
    signal.pause()


if __name__ == "__main__":
    main()
