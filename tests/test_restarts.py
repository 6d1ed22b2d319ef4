"""Restarts: every attempt starts fresh, ranks share one count, and stopping takes limited time."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch
from warm_torch import WarmTorch

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]

GLOO = """
import os, signal, sys
import torch
import torch.distributed as dist

restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.ones(1) * rank
dist.all_reduce(total)
assert total.item() == size * (size - 1) / 2
counts = [None] * size
dist.all_gather_object(counts, restart)
assert counts == [restart] * size, counts
if rank == restart % size and restart < int(os.environ["KILLS"]):
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
if rank == 0:
    print("trained in attempt", restart, flush=True)
sys.stdout.flush()
os._exit(0)  # the shutdown of Python takes a second with torch
"""


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.long
def test_gloo_job_survives_kill_without_preload(
    launch: Launch, script: Callable[[str], Path]
) -> None:
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--preload=off")
    check_kills(launch("run", *flags, script(GLOO), KILLS="1"), 1)


@pytest.mark.slow
@pytest.mark.needs_torch
def test_gloo_job_survives_repeated_kills(warm_torch: WarmTorch) -> None:
    """A different rank is killed each time; every attempt uses a fresh store."""
    flags = ("--nproc-per-node=2", "--max-restarts=2")
    check_kills(warm_torch.run(GLOO, *flags, KILLS="2"), 2)


def check_kills(result: "subprocess.CompletedProcess[str]", kills: int) -> None:
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"trained in attempt {kills}\n"
    assert result.stderr.count("was killed by SIGKILL") == kills
    assert f"restart {kills} of {kills}" in result.stderr


@pytest.mark.slow
@pytest.mark.needs_torch
def test_rank_0_can_serve_store_itself(warm_torch: WarmTorch) -> None:
    """--worker-store=rank0 leaves the store to torch, on a port that nobody else can take."""
    flags = ("--nproc-per-node=2", "--max-restarts=2", "--worker-store=rank0")
    result = warm_torch.run(GLOO, *flags, KILLS="2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "trained in attempt 2\n"


COUNT = """
import os, pathlib, sys, time
names = ("RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
print(*(os.environ[name] for name in names), flush=True)
told = pathlib.Path("told" + os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "0":
    told.touch()
    sys.exit(0)
while not told.exists():  # or rank 0 may be stopped before it can print
    time.sleep(0.01)
sys.exit(9)
"""


def test_job_exits_with_root_cause_exit_code_after_last_restart(
    launch: Launch, script: Script
) -> None:
    result = launch("run", "--nproc-per-node=2", "--max-restarts=2", script(COUNT))
    assert result.returncode == 9
    assert sorted(result.stdout.split("\n")[:-1]) == [
        "0 0 2", "0 1 2", "0 2 2", "1 0 2", "1 1 2", "1 2 2",
    ]  # fmt: skip
    assert "all 2 restarts are used up" in result.stderr


def test_finished_workers_are_restarted_with_failed_ones(launch: Launch, script: Script) -> None:
    """A rank that had finished before another one failed runs again."""
    text = """
import os, pathlib, sys, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("ran", flush=True)
mark = pathlib.Path("rank0-is-done")
if os.environ["RANK"] == "0":
    mark.touch()
elif first:
    while not mark.exists():
        time.sleep(0.01)
    time.sleep(0.1)
    sys.exit(1)
"""
    result = launch("run", "--nproc-per-node=2", "--max-restarts=1", script(text))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "ran\n" * 4


def test_shutdown_timeout_limits_restart_delay(launch: Launch, script: Script) -> None:
    """Under torchrun, the timeout is fixed at 30 s. The stubborn peer outlasts any test."""
    text = """
import os, signal, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit(0)
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: None)
    open("stubborn", "w").close()
    time.sleep(1000)
while not os.path.exists("stubborn"):
    time.sleep(0.01)
sys.exit(3)
"""
    begin = time.monotonic()
    result = launch(
        "run", "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0.3", script(text)
    )
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - begin >= 0.3


def test_eight_simultaneous_jobs_get_separate_ports(
    start: Callable[..., object], script: Script
) -> None:
    """Port 29500 is already taken."""
    import json
    import socket

    path = script("""
import json, os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
socket.create_connection(address).close()
print(json.dumps([os.environ["TORCHELASTIC_RUN_ID"], address[1]]), flush=True)
""")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            squatter.bind(("127.0.0.1", 29500))
            squatter.listen()
        except OSError:
            pass  # somebody else has already taken it
        agents = [start("run", "--nproc-per-node=2", path) for _ in range(8)]
        seen = set()
        for agent in agents:
            out, errors = agent.communicate(timeout=LIMIT_S)  # type: ignore[attr-defined]
            assert agent.returncode == 0, errors  # type: ignore[attr-defined]
            lines = {tuple(json.loads(line)) for line in out.splitlines()}
            assert len(lines) == 1
            seen |= lines
    assert len({run_id for run_id, _ in seen}) == 8
    assert len({port for _, port in seen}) == 8


def test_job_fails_before_start_if_master_port_is_taken(launch: Launch, script: Script) -> None:
    """The error names the port."""
    import socket

    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        result = launch("run", f"--master-port={port}", script("print('ran')"))
    assert result.returncode == 2
    assert f"port 127.0.0.1:{port}" in result.stderr
    assert result.stdout == ""
