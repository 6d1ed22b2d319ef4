"""Unfit modules are not used; whatever is killed, nothing is left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start, long
from test_orphans import below, marked, wait_until_gone, wait_until_up
from warm_torch import WarmTorch

Script = Callable[..., Path]
PYTHONPATH = os.environ.get("PYTHONPATH", "")


def test_workers_keep_file_descriptor_opened_by_libffi(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """When ctypes is imported, libffi 3.5 opens its own file and maps code from it later."""
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libffi.so.8"
    library.touch()
    script(f"f = open({str(library)!r})", "lib/sitecustomize.py")
    path = os.pathsep.join([PYTHONPATH, str(tmp_path / "lib")])
    text = (
        "import os, sitecustomize; print(os.readlink(f'/proc/self/fd/{sitecustomize.f.fileno()}'))"
    )
    result = launch("run", "--preload=json", "-v", script(text), PYTHONPATH=path)
    assert "workers start with preloaded modules" in result.stderr
    assert result.stdout == f"{library}\n"


def test_interpreter_that_leaves_files_open_is_not_forked(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """Descriptors may be left open by the interpreter's own sitecustomize."""
    (tmp_path / "lib").mkdir()
    script("f = open('/dev/null')", "lib/sitecustomize.py")
    path = os.pathsep.join([PYTHONPATH, str(tmp_path / "lib")])
    result = launch("run", "--preload=json", "-v", script("print('ran')"), PYTHONPATH=path)
    assert result.stdout == "ran\n", result.stderr
    assert "the start of the interpreter opens /dev/null" in result.stderr


def test_local_module_takes_precedence_over_preloaded_one(launch: Launch, script: Script) -> None:
    """A script with its own module of the same name as a preloaded one gets its own."""
    script("x = 'mine'", "csv.py")
    path = script("import csv\nprint(csv.x)")
    result = launch("run", "--preload=json,csv", "-v", path)
    assert result.stdout == "mine\n", result.stderr
    assert "the script would import a different csv" in result.stderr


def test_broken_module_does_not_prevent_other_modules_from_preloading(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """One of two modules is broken, but the other one is preloaded nevertheless."""
    (tmp_path / "lib").mkdir()
    script("1 / 0", "lib/broken.py")
    path = os.pathsep.join([PYTHONPATH, str(tmp_path / "lib")])
    worker = script("print('ran')")
    result = launch("run", "--preload=broken,json", "-v", worker, PYTHONPATH=path)
    assert result.stdout == "ran\n", result.stderr
    assert "broken is not preloaded: it can't be imported: ZeroDivisionError" in result.stderr
    assert "not using the preloading process" not in result.stderr


def test_workers_start_cold_if_python_exec_is_a_wrapper(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """PYTHON_EXEC may be a program that starts Python; each worker then starts cold through it."""
    wrapper = script(f'#!/bin/sh\nexport FROM=$RANK\nexec {sys.executable} "$@"\n', "wrap.sh")
    wrapper.chmod(0o755)
    path = script("import os\nprint(os.environ['FROM'] == os.environ['RANK'])")
    result = launch("run", "--preload=json", "-v", path, PYTHON_EXEC=str(wrapper))
    assert result.stdout == "True\n", result.stderr
    assert "only an interpreter can be forked" in result.stderr


def test_isolated_interpreter_runs_script_only_once(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """If sitecustomize is not imported, the script still runs exactly once per worker."""
    wrapper = script(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', "wrap.sh")
    wrapper.chmod(0o755)
    path = script("open('ran', 'a').write('x')")
    result = launch("run", "--preload=json", "-v", path, PYTHON_EXEC=str(wrapper))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "ran").read_text() == "x"
    assert "it starts without sitecustomize" in result.stderr


def test_preload_flag_has_no_effect_on_non_python_program(launch: Launch) -> None:
    """With --no-python, a message says that --preload has no effect."""
    result = launch("run", "--preload=json", "--no-python", "true")
    assert result.returncode == 0
    assert "--preload has no effect with --no-python" in result.stderr


def warm_spawner(agent: int) -> int:
    """Return the pid of the agent's warm spawner, or 0."""
    for pid in below(agent):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"warm spawner of"):
                return int(pid)
        except OSError:
            pass
    return 0


TREE = """
import os, subprocess, sys, time
m = sys.argv[1]
subprocess.Popen(["sleep", m])
subprocess.Popen(["setsid", "sleep", m])
subprocess.Popen(["env", "-i", "setsid", "sh", "-c", f"sleep {m} & sleep {m}"])
if sys.argv[2] == "long":
    time.sleep(600)
sys.exit(1)
"""


@pytest.fixture
def marker() -> str:
    """The argument of a sleep command that is unique on this machine."""
    return f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6, 10**7)}"


@pytest.mark.parametrize("life", [long("long"), "short"])
@pytest.mark.parametrize("victim", ["agent", "warm spawner"])
def test_no_process_outlives_killed_agent_or_warm_spawner(
    victim: str, life: str, start: Start, script: Script, marker: str
) -> None:
    """The agent or the warm spawner receives SIGKILL at a random moment."""
    chance = random.Random()
    path = script(TREE)
    for _ in range(5):
        agent = start("run", "--preload=json,csv", "--nproc-per-node=2", "--max-restarts=100000",
                      "--shutdown-timeout=0.1", path, marker, life,
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        if life == "long" and chance.random() < 0.7:
            wait_until_up(marker, 8)
        time.sleep(chance.uniform(0.05, 0.6))
        if victim == "agent":
            agent.send_signal(signal.SIGKILL)
        else:
            if pid := warm_spawner(agent.pid):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
            assert agent.poll() is None  # it continues
            agent.send_signal(signal.SIGTERM)
        agent.wait(LIMIT_S)
        wait_until_gone(marker, LIMIT_S)


def test_killed_warm_spawner_is_replaced(
    start: Start, script: Script, tmp_path: Path, marker: str
) -> None:
    """If it is killed during a generation, the next start is cold and the one after is warm."""
    path = script("""
import os, pathlib, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path("up" + restart).touch()
if restart == "2":
    sys.exit(0)
while not os.path.exists("go" + restart):
    time.sleep(0.01)
sys.exit(1)
""")
    logs = tmp_path / "logs"
    agent = start("run", "--preload=json,csv", "--max-restarts=3", f"--log-dir={logs}", path)

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            assert agent.poll() is None
            time.sleep(0.01)

    until((tmp_path / "up0").exists)
    first = warm_spawner(agent.pid)
    assert first  # kill(0) would end the test run
    os.kill(first, signal.SIGKILL)
    until((tmp_path / "up1").exists)
    log = next(logs.glob("*/events.jsonl"))
    until(lambda: log.read_text().count('"PreloadReady"') == 2)
    (tmp_path / "go1").touch()
    assert agent.wait(LIMIT_S) == 0
    events = [json.loads(x) for x in next(logs.glob("*/events.jsonl")).read_text().splitlines()]
    assert [e["warm"] for e in events if e["event"] == "WorkersForked"] == [True, False, True]
    assert marked(f"warm spawner of {agent.pid}") == []


DDP = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
restart, KILLS = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["KILLS"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.arange(32.0).reshape(8, 4))
for (batch,) in DataLoader(data, batch_size=4, num_workers=2 if restart == KILLS else 0):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
if restart < KILLS and dist.get_rank() == restart % 2:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
if dist.get_rank() == 0:
    print("trained", restart, round(model.module.weight.sum().item(), 3), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_ddp_job_restarts_warm_after_every_kill(warm_torch: WarmTorch, kills: int) -> None:
    """With torch preloaded, each restart is warm, and the result is that of a cold start."""
    flags = ("--nproc-per-node=2", f"--max-restarts={kills}", "-v")
    result = warm_torch.run(DDP, *flags, KILLS=str(kills))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("workers start with preloaded modules") == kills + 1
    assert result.stdout.startswith(f"trained {kills} ")


@pytest.mark.long
def test_descriptors_sent_in_several_messages_reach_the_right_warm_workers(
    launch: Launch, script: Script
) -> None:
    """If the descriptors do not fit into one message, they still reach the right workers."""
    path = script("import os\nprint(os.environ['LOCAL_RANK'])")
    result = launch("run", "--preload=json", "--nproc-per-node=140", "-v", path)
    assert result.returncode == 0, result.stderr
    assert "workers start with preloaded modules" in result.stderr
    assert sorted(map(int, result.stdout.split())) == list(range(140))
