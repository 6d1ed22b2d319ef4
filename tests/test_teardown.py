"""A failed generation ends as fast as its workers allow, and only waits for those with a reason.

The grace periods exceed a test's time limit, so that a test fails if it waits for one.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch
from warm_torch import WarmTorch

pytestmark = pytest.mark.forked

Script = Callable[..., Path]
LONG = "--shutdown-timeout=300"

# Rank 0 fails once all the others have written their files.
FAIL = """
import os, signal, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if not first:
    sys.exit(0)
if rank == 0:
    while sum(name.startswith("blocked.") for name in os.listdir()) < world - 1:
        time.sleep(0.01)
    sys.exit(3)
def blocked():
    open(f"blocked.{rank}", "w").close()
"""
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nblocked()\ntime.sleep(1000)"
SYSTEM_CALL = "blocked()\nos.read(os.pipe()[0], 1)"
DESTRUCTOR = """
class Model:
    def __del__(self):
        blocked()
        time.sleep(1000)
model = Model()
del model
"""
AT_EXIT = "import atexit\natexit.register(lambda: (blocked(), time.sleep(1000)))"
# A libc lock that is acquired twice: while it waits, no Python signal handler can run.
STUCK_IN_C = """
import ctypes
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
blocked()
libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    "body",
    [IGNORES, SYSTEM_CALL, DESTRUCTOR, AT_EXIT, STUCK_IN_C],
    ids=["ignores SIGTERM", "system call", "destructor", "atexit", "native code"],
)
def test_teardown_does_not_wait_for_workers_without_handler(
    body: str, launch: Launch, script: Script
) -> None:
    """Workers may be stuck anywhere."""
    result = launch("run", "--nproc-per-node=3", "--max-restarts=1", LONG, script(FAIL + body))
    assert result.returncode == 0, result.stderr
    assert "restart 1 of 1" in result.stderr


COLLECTIVE = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pair = dist.new_group([1, 2])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    dist.barrier()  # a rank that leaves while others still connect fails them
    sys.exit(0)
if dist.get_rank() == 1:
    pathlib.Path("blocked").touch()
    dist.all_reduce(torch.ones(1), group=pair)
if dist.get_rank() == 2:
    time.sleep(1000)
while not os.path.exists("blocked"):
    time.sleep(0.01)
os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.needs_torch
def test_teardown_does_not_wait_for_worker_stuck_in_collective(warm_torch: WarmTorch) -> None:
    """A rank that is stuck in an all-reduce with an absent peer is ended immediately."""
    flags = ("--nproc-per-node=3", "--max-restarts=1", LONG)
    result = warm_torch.run(COLLECTIVE, *flags)
    assert result.returncode == 0, result.stderr
    assert "restart 1 of 1" in result.stderr


SAVES = """
def save(sleep=time.sleep, make=os.mkdir):
    sleep(0.5)
    make(f"saved.{rank}")
class Model:
    def __del__(self, save=save):
        save()
def stop(*_):
"""
WAITS = """
signal.signal(signal.SIGTERM, stop)
blocked()
time.sleep(1000)
"""


@pytest.mark.parametrize(
    "stop",
    [
        "    save()\n    sys.exit(0)",
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n    save()\n    sys.exit(0)",
        "    sys.exit(0)\nmodel = Model()",
    ],
    ids=["in its handler", "after resetting the handler", "at interpreter exit"],
)
def test_teardown_waits_for_worker_that_is_checkpointing(
    stop: str, launch: Launch, script: Script
) -> None:
    """A worker that handles SIGTERM gets the grace period, whatever happens to the handler."""
    path = script(FAIL + SAVES + stop + WAITS)
    result = launch("run", "--nproc-per-node=9", "--max-restarts=1", LONG, path)
    assert result.returncode == 0, result.stderr
    assert len(list(path.parent.glob("saved.*"))) == 8


def test_all_workers_share_one_grace_period(launch: Launch, script: Script) -> None:
    """Eight workers whose handlers never run are killed at the same time, not one by one."""
    path = script(FAIL + "signal.signal(signal.SIGTERM, lambda *_: None)" + STUCK_IN_C)
    result = launch("run", "--nproc-per-node=9", "--max-restarts=1", "--shutdown-timeout=2",
                    "--log-dir=logs", path)  # fmt: skip
    assert result.returncode == 0, result.stderr
    (log,) = path.parent.glob("logs/*/events.jsonl")
    exits = [
        event["t"]
        for event in map(json.loads, log.read_text().splitlines())
        if event["event"] == "WorkerExited" and event["exitcode"]
    ]
    assert len(exits) == 9
    assert max(exits[1:]) - exits[1] < exits[1] - exits[0]  # one by one, it takes 7 times as long


def test_stop_signal_from_user_gives_all_workers_time_to_finish(
    start: Callable[..., object], script: Script
) -> None:
    """A worker that ignores SIGTERM because it is nearly done may finish."""
    import signal

    path = script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('begun', flush=True)\ntime.sleep(1)\nprint('done', flush=True)\n"
    )
    process = start("run", LONG, path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == b"done\n"
    assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
