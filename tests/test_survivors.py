"""One rank fails, and the others keep their processes (relight.worker.recoverable)."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import survivor_plays
from conftest import LIMIT_S, Launch, Start, long, wait_for_event
from differential.recording import free_port
from test_hangs import STARTING
from warm_torch import WarmTorch

from relight.base.text import pluralize
from relight.core.workers import shared_words as words
from relight.worker import survivor
from relight.worker.replicas import Generation
from relight.worker.survivor import _packed, sever

Script = Callable[[str], Path]
SOON = (
    sys.executable, "-c",
    "from relight.warm import watched_worker as watched\n"
    "watched._LEARN_S, watched._QUIET_S = 0.3, 0.5\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip

BEGIN = """
import os, pathlib, signal, subprocess, sys, time
from relight.worker import progress, recoverable

rank = int(os.environ.get("RANK", "0"))
here = pathlib.Path.cwd()

def wait_for(*names):
    while not all((here / name).exists() for name in names):
        time.sleep(0.002)

def peer_fails(name):
    '''Do what gloo does in a rank whose peer is gone.'''
    wait_for(name)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")

def note(generation):
    text = f"{os.getpid()} {os.environ['MASTER_PORT']} {generation.rank}"
    (here / f".{rank}-{generation.restart}").write_text(text)
    (here / f".{rank}-{generation.restart}").rename(here / f"{rank}-{generation.restart}")
"""
FAIL = """
@recoverable
def train(generation):
    note(generation)
    if generation.restart == 0:
        if rank in FAILING:
            wait_for("0-0", "1-0", "2-0", "3-0")
            (here / "failed").touch()
            HOW
        peer_fails("failed")
    generation.restored()
    progress(1)

train()
"""
KILL, RAISE = "os.kill(os.getpid(), signal.SIGKILL)", 'raise ValueError("bad batch")'


def noted(place: Path, restart: int) -> list[tuple[int, int, int]]:
    """Return each rank's pid, store port, and rank in an attempt."""
    texts = [(place / f"{rank}-{restart}").read_text() for rank in range(4)]
    return [tuple(map(int, text.split())) for text in texts]  # type: ignore[misc]


@pytest.mark.parametrize(("how", "failing"), [long(KILL, [2]), (RAISE, [2]), (KILL, [0, 3])])
def test_surviving_ranks_keep_pid_and_rank(
    launch: Launch, script: Script, tmp_path: Path, how: str, failing: list[int]
) -> None:
    text = BEGIN + FAIL.replace("FAILING", str(failing)).replace("HOW", how)
    result = launch("run", "--nproc-per-node=4", "--max-restarts=1", script(text))
    assert result.returncode == 0, result.stderr
    before, after = noted(tmp_path, 0), noted(tmp_path, 1)
    for rank in range(4):
        assert (before[rank][0] == after[rank][0]) == (rank not in failing)
        assert after[rank][2] == rank
    assert len({port for _, port, _ in after}) == 1
    ranks = "rank 2 was" if failing == [2] else "ranks 0, 3 were"
    stayed = f"{ranks} replaced in [0-9.]+ s; {4 - len(failing)} ranks kept running"
    assert re.search(stayed, result.stderr), result.stderr
    assert "restart 1 of 1" in result.stderr


def test_second_failure_without_progress_restarts_all_ranks(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    text = (
        BEGIN
        + """
@recoverable
def train(generation):
    note(generation)
    attempt = generation.restart
    if attempt < 2:
        if rank == 1:
            wait_for(*(f"{each}-{attempt}" for each in range(4)))
            (here / f"failed{attempt}").touch()
            sys.exit(5)
        peer_fails(f"failed{attempt}")

train()
"""
    )
    result = launch("run", "--nproc-per-node=4", "--max-restarts=2", script(text))
    assert result.returncode == 0, result.stderr
    pids = [{pid for pid, _, _ in noted(tmp_path, attempt)} for attempt in range(3)]
    assert len(pids[0] & pids[1]) == 3
    assert not pids[1] & pids[2]
    assert "all ranks restart: no rank has reported a new step" in result.stderr


OUTSIDE = """
if rank == 0:
    note(type("", (), {"rank": 0, "restart": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        wait_for("never")
else:
    train()
"""
DEAF = """
@recoverable
def stay(generation):
    note(generation)
    if generation.restart == 0:
        wait_for("never")
(stay if rank == 0 else train)()
"""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (OUTSIDE, "local rank 0 does not run a recoverable function"),
        (DEAF, "local rank 0 did not leave the group within 0.5 s"),
    ],
)
def test_all_ranks_restart_if_survivors_cannot_continue(
    launch: Launch, script: Script, tmp_path: Path, end: str, reason: str
) -> None:
    text = BEGIN + FAIL.replace("FAILING", "[2]").replace("HOW", KILL)
    text = text.removesuffix("train()\n") + end
    flags = ("--nproc-per-node=4", "--max-restarts=1", "--shutdown-timeout=0.5")
    result = launch("run", *flags, script(text))
    assert result.returncode == 0, result.stderr
    assert f"all ranks restart: {reason}" in result.stderr
    before, after = noted(tmp_path, 0), noted(tmp_path, 1)
    assert not {pid for pid, _, _ in before} & {pid for pid, _, _ in after}


def test_surviving_ranks_end_when_restart_budget_is_exhausted(
    launch: Launch, script: Script
) -> None:
    text = (
        BEGIN
        + """
@recoverable
def train(generation):
    (here / f"{rank}-{generation.restart}").touch()
    generation.restored()
    progress(generation.restart)
    if rank == 1:
        wait_for(f"0-{generation.restart}")
        (here / f"failed{generation.restart}").touch()
        sys.exit(7)
    peer_fails(f"failed{generation.restart}")

train()
"""
    )
    result = launch("run", "--nproc-per-node=2", "--max-restarts=1", script(text))
    assert result.returncode == 7, result.stderr
    assert "the only restart is used up" in result.stderr
    assert result.stderr.count("was replaced") == 1


def test_surviving_rank_fails_if_its_state_was_not_restored(launch: Launch, script: Script) -> None:
    """Otherwise, the ranks would continue training with different weights."""
    text = BEGIN + FAIL.replace("FAILING", "[2]").replace("HOW", KILL)
    text = text.replace("    generation.restored()\n", "")
    result = launch("run", "--nproc-per-node=4", "--max-restarts=1", script(text))
    assert result.returncode == 1
    assert "its state differs from that of the others" in result.stderr


def test_child_processes_of_failed_rank_end(launch: Launch, script: Script, tmp_path: Path) -> None:
    text = BEGIN + FAIL.replace("FAILING", "[2]").replace("HOW", KILL)
    text = text.replace(
        "            (here",
        '            child = subprocess.Popen(["sleep", "1000"])\n'
        '            (here / "child").write_text(str(child.pid))\n            (here',
    ).replace(
        "    progress(1)",
        '    status = pathlib.Path("/proc", (here / "child").read_text())\n'
        "    assert rank != 2 or not status.exists()\n    progress(1)",
    )
    result = launch("run", "--nproc-per-node=4", "--max-restarts=1", script(text))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "child").exists()


def test_recoverable_function_runs_without_launcher(script: Script, tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
@recoverable
def train(generation, steps):
    progress(steps)
    return generation.world_size, generation.has_survived, steps

print(train(3))
try:
    recoverable(lambda generation: peer_fails("."))()
except RuntimeError as error:
    print(type(error).__name__)
"""
    )
    variables = {
        n: v for n, v in os.environ.items() if not n.startswith(("TORCHELASTIC", "RELIGHT"))
    }
    result = subprocess.run(
        [sys.executable, script(text)],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "(1, False, 3)\nRuntimeError\n"


def test_recovery_closes_only_connections_of_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    gloo, store, own = (each.getsockname() for each in listeners)
    clients = [socket.create_connection(each.getsockname()) for each in listeners]
    accepted = [each.accept()[0] for each in listeners]
    monkeypatch.setenv("MASTER_PORT", str(store[1]))
    assert sever([b"rank 0 " + _packed(socket.AF_INET, gloo) + bytes(8)]) == 3
    clients[2].sendall(b"x")
    assert accepted[2].recv(1) == b"x"
    for each in (clients[0], accepted[0], clients[1]):
        assert each.recv(1) == b""
    for each in (*listeners, *clients, *accepted):
        each.close()
    assert own


def test_nccl_is_aborted_only_if_optimizer_steps_can_be_prevented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another optimizer's step, or one in a CUDA graph, would use undefined data."""
    monkeypatch.setattr(survivor, "has_nccl", lambda: True)
    watch = survivor._Watch(memoryview(bytearray(words.SIZE)).cast("Q"))
    try:
        watch.generation = Generation(has_survived=False)
        assert watch.can_abort(), "nothing is trained yet"
        watch.generation.restored()
        assert not watch.can_abort()
        watch.has_stepped = True
        assert watch.can_abort()
        watch._is_captured = True
        assert not watch.can_abort()
    finally:
        watch.end()


DDP = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from relight.worker import progress, recoverable

torch.manual_seed(1)
layers = torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64)
layers[1].register_buffer("after", torch.zeros(1))  # written to after the optimizer's step
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
done = 0
rank = int(os.environ["RANK"])

@recoverable
def train(generation):
    global done
    dist.init_process_group("gloo")
    if os.environ.get("ORDER") == "wrong":
        ddp = DistributedDataParallel(model)
    done = generation.share(model, optimizer, step=done)
    ddp = DistributedDataParallel(model)
    while done < 6:
        if str(done) == os.environ["REBUILD"]:
            ddp = None
            ddp = DistributedDataParallel(model)
        torch.manual_seed(100 * done + rank)
        dies = f"{rank}:{done}" in os.environ["KILLS"].split() and generation.restart == 0
        if dies:  # while its peers are in the all-reduce
            time.sleep(0.2)
            exec(os.environ.get("HOW", "os.kill(os.getpid(), signal.SIGKILL)"))
        loss = ddp(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            layers[1].after += 1
        done += 1
        progress(done)
        print(rank, "step", done, loss.item().hex(), flush=True)
    dist.barrier()


train()
total = sum(each.double().sum().item() for each in model.parameters())
print(rank, "weights", total.hex(), flush=True)
print(rank, "batches", layers[1].num_batches_tracked.item(), layers[1].after.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("kills", [long("0:3"), "1:3 2:3"])
def test_losses_after_recovery_equal_those_of_uninterrupted_run(
    warm_torch: WarmTorch, kills: str
) -> None:
    """The losses are identical, bit for bit, to those of a run that rewraps its model at that step,
    because DDP's first step sums in a different order. BatchNorm doesn't count the failed step.
    """
    flags = ("--nproc-per-node=3", "--max-restarts=1")
    whole = warm_torch.run(DDP, *flags, KILLS="", REBUILD="3")
    assert whole.returncode == 0, whole.stderr
    result = warm_torch.run(DDP, *flags, KILLS=kills, REBUILD="")
    assert result.returncode == 0, result.stderr
    count = len(kills.split())
    assert f"; {pluralize(3 - count, 'rank')} kept running" in result.stderr
    assert set(result.stdout.splitlines()) == set(whole.stdout.splitlines())


RECONFIGURE = """
    dist.init_process_group("gloo", enable_reconfigure=True)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"handle{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle{each}").decode() for each in range(generation.world_size)]
    dist._reconfigure(generation.restart, handles).wait()
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.needs_torch_reconfigure
@pytest.mark.parametrize("kills", ["0:3", "1:3 2:3"])
def test_reconfigured_group_of_survivors_has_same_losses(warm_torch: WarmTorch, kills: str) -> None:
    """Torch 2.14 creates a group without connections, and connects it later."""
    text = DDP.replace('    dist.init_process_group("gloo")\n', RECONFIGURE)
    flags = ("--nproc-per-node=3", "--max-restarts=1")
    whole = warm_torch.run(text, *flags, KILLS="", REBUILD="3")
    assert whole.returncode == 0, whole.stderr
    result = warm_torch.run(text, *flags, KILLS=kills, REBUILD="")
    assert result.returncode == 0, result.stderr
    count = len(kills.split())
    assert f"; {pluralize(3 - count, 'rank')} kept running" in result.stderr
    assert set(result.stdout.splitlines()) == set(whole.stdout.splitlines())


HANGS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "in C": "import ctypes; ctypes.PyDLL(None).pause()",  # holds the GIL
}


def hanging(text: str) -> str:
    """Return a script that is busy until its state is shared, and records its pids."""
    share = "    done = generation.share(model, optimizer, step=done)\n"
    note = "open(f'pid-{rank}-{generation.restart}', 'w').write(str(os.getpid()))"
    return text.replace("import torch\n", "import starting\nimport torch\n", 1).replace(
        share, f"{share}    starting.over()\n    {note}\n"
    )


def pids(place: Path, restart: int) -> list[int]:
    return [int((place / f"pid-{rank}-{restart}").read_text()) for rank in range(4)]


def stayed(place: Path) -> list[bool]:
    """Return for each rank of `hanging` whether it has kept its process."""
    return [one == other for one, other in zip(pids(place, 0), pids(place, 1), strict=True)]


@pytest.mark.slow
@pytest.mark.long  # the same on two nodes is below
@pytest.mark.needs_torch
@pytest.mark.parametrize("how", ["stopped", "in C"])
def test_only_hung_rank_is_replaced(warm_torch: WarmTorch, how: str) -> None:
    """The losses equal, bit for bit, those of a run that rewraps its model at that step."""
    (warm_torch.folder / "starting.py").write_text(STARTING)
    flags = ("--nproc-per-node=4", "--max-restarts=1", "--hang-timeout=3")
    whole = warm_torch.run(hanging(DDP), *flags, KILLS="", REBUILD="3")
    assert whole.returncode == 0, whole.stderr
    result = warm_torch.run(hanging(DDP), *flags, KILLS="1:3", REBUILD="", HOW=HANGS[how])
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 1 (hangs in|is stopped).*; restart 1 of 1", result.stderr)
    assert "rank 1 was replaced in" in result.stderr
    assert set(result.stdout.splitlines()) == set(whole.stdout.splitlines())
    assert stayed(warm_torch.folder) == [True, False, True, True]
    assert not Path(f"/proc/{pids(warm_torch.folder, 0)[1]}/exe").exists()


@pytest.mark.slow
@pytest.mark.needs_torch
def test_all_ranks_restart_if_hung_rank_is_unknown(warm_torch: WarmTorch) -> None:
    """Two ranks wait for the two others in a different collective."""
    (warm_torch.folder / "starting.py").write_text(STARTING)
    flags = ("--nproc-per-node=4", "--max-restarts=1", "--hang-timeout=3")
    variables = {"KILLS": "0:3 1:3", "REBUILD": "", "HOW": "dist.barrier()"}
    result = warm_torch.run(hanging(DDP), *flags, **variables)
    assert result.returncode == 0, result.stderr
    assert "ranks are waiting for each other in different calls" in result.stderr
    assert "all ranks restart: the rank that hangs is unknown" in result.stderr
    assert stayed(warm_torch.folder) == [False, False, False, False]


def on_two_nodes(
    warm_torch: WarmTorch, text: str, *flags: str, **variables: str
) -> tuple[str, list[str]]:
    """Run a script on two agents to its end; return their console output and the ranks' output."""
    text = text.replace("import torch\n", f"os.environ.update({variables})\nimport torch\n", 1)
    text = text.replace("print(rank,", "print(rank, file=open(f'out{rank}', 'a'), *(")
    text = text.replace(", flush=True)", ",))")
    meet = (f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-backend=c10d", "--rdzv-id=j")
    flags = (*meet, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=1", *flags)
    results = warm_torch.run_agents(2, text, *flags)
    assert [each.returncode for each in results] == [0, 0], results
    outputs = sorted(warm_torch.folder.glob("out*"))
    lines = [line for path in outputs for line in path.read_text().splitlines()]
    for path in outputs:
        path.unlink()
    return "".join(each.stderr for each in results), lines


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.needs_torch
def test_losses_on_two_nodes_equal_those_of_uninterrupted_run(warm_torch: WarmTorch) -> None:
    _, whole = on_two_nodes(warm_torch, DDP, KILLS="", REBUILD="3")
    console, lines = on_two_nodes(warm_torch, DDP, KILLS="2:3", REBUILD="")
    assert "; 1 rank kept running" in console
    assert {*lines} == {*whole}


@pytest.mark.slow
@pytest.mark.needs_torch
def test_only_hung_rank_is_replaced_in_two_node_job(warm_torch: WarmTorch) -> None:
    (warm_torch.folder / "starting.py").write_text(STARTING)
    flag, text = "--hang-timeout=3", hanging(DDP)
    _, whole = on_two_nodes(warm_torch, text, flag, KILLS="", REBUILD="3")
    hang = {"KILLS": "2:3", "REBUILD": "", "HOW": HANGS["stopped"]}
    console, lines = on_two_nodes(warm_torch, text, flag, **hang)
    assert "rank 2 was replaced in" in console
    assert {*lines} == {*whole}
    assert stayed(warm_torch.folder) == [True, True, False, True]


HELD_BACK = """
import torch
from relight.core.workers import shared_words as words
from relight.worker import survivor
from relight.worker.replicas import Generation

page = memoryview(bytearray(words.SIZE)).cast("Q")
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1.0)
watch = survivor._Watch(page)
watch.generation = Generation(False)
watch.hook_optimizers()
optimizer.step()
page[words.LEAVE] = 1  # gradients of an aborted collective are undefined
try:
    optimizer.step()
except survivor.GroupBrokenError:
    print("held back at", weight.item())
watch.end()
optimizer.step()
print("then", weight.item())
"""


@pytest.mark.slow
@pytest.mark.needs_torch
def test_optimizer_does_not_step_after_failure(warm_torch: WarmTorch) -> None:
    done = warm_torch.run(HELD_BACK, "--nproc-per-node=1")
    assert done.stdout == "held back at -1.0\nthen -2.0\n", done.stderr


@pytest.mark.slow
@pytest.mark.needs_torch
def test_state_overwritten_by_ddp_is_not_shared(warm_torch: WarmTorch) -> None:
    """DDP has copied the new rank 0's weights to all other ranks."""
    flags = ("--nproc-per-node=3", "--max-restarts=1")
    result = warm_torch.run(DDP, *flags, KILLS="0:3", REBUILD="", ORDER="wrong")
    assert result.returncode == 1
    assert "call generation.share() before DistributedDataParallel" in result.stderr


FSDP = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from relight.worker import StateLostError, progress, recoverable

done = 0
rank = int(os.environ["RANK"])

def checkpoint(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))

@recoverable
def train(generation):
    global done
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(generation.restart)  # only the shared state gives equal losses
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 16))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    try:
        done = generation.share(model, optimizer, step=done if "FORGET" not in os.environ else 0)
    except StateLostError as error:
        print(error, file=sys.stderr, flush=True)
        state = checkpoint(model, optimizer)
        dcp.load(state, checkpoint_id="saved")
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        done = 2
        generation.restored()
    while done < 5:
        torch.manual_seed(100 * done + rank)
        if f"{rank}:{done}" in os.environ["KILLS"].split() and generation.restart == 0:
            time.sleep(0.2)  # its peers are in the all-gather
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.device_mesh is mesh  # not an equal one, of an old group
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        progress(done)
        print(rank, "step", done, loss.item().hex(), norm.full_tensor().item().hex(), flush=True)
        if done == 2:
            dcp.save(checkpoint(model, optimizer), checkpoint_id="saved")
    dist.barrier()
    print(rank, "weights", [each.to_local().tolist() for each in model.parameters()], flush=True)


train()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def whole_fsdp() -> dict[str, set[str]]:
    """The output of an undisturbed run, made only once."""
    return {}


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("kills", "said"),
    [
        ("2:3", "rank 2 was replaced"),
        long("0:3 3:3", "ranks 0, 3 were replaced"),
        long("1:3 3:3", "no survivor has the shards of ranks 1, 3: load a checkpoint"),
    ],
)
def test_model_shards_are_restored_from_replicas_or_checkpoint(
    warm_torch: WarmTorch, whole_fsdp: dict[str, set[str]], kills: str, said: str
) -> None:
    flags = ("--nproc-per-node=4", "--max-restarts=1")
    if not whole_fsdp:
        whole = warm_torch.run(FSDP, *flags, KILLS="")
        assert whole.returncode == 0, whole.stderr
        whole_fsdp["lines"] = set(whole.stdout.splitlines())
    result = warm_torch.run(FSDP, *flags, KILLS=kills)
    assert result.returncode == 0, result.stderr
    assert said in result.stderr
    assert f"; {pluralize(4 - len(kills.split()), 'rank')} kept running" in result.stderr
    assert ("no survivor has" in result.stderr) == said.startswith("no survivor")
    assert set(result.stdout.splitlines()) == whole_fsdp["lines"]


@pytest.mark.slow
@pytest.mark.needs_torch
def test_model_shards_from_unknown_step_are_not_shared(warm_torch: WarmTorch) -> None:
    """Otherwise, shards from different steps would be combined into one model."""
    flags = ("--nproc-per-node=4", "--max-restarts=1")
    result = warm_torch.run(FSDP, *flags, KILLS="2:3", FORGET="1")
    assert result.returncode == 1
    assert "keep the step outside of the function" in result.stderr


MOVED = """
import gc, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from relight.worker.replicas import Generation

me = int(os.environ["RANK"])
done, before = 0, None
for number, rank in enumerate((me, 3 - me, (me + 2) % 4)):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{number}", rank=rank,
                            world_size=4)
    generation = Generation(has_survived=number > 0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(number)
    model = nn.Linear(16, 33)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = generation.share(model, optimizer, step=done)
    for each in range(3):
        tensors = [*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values())]
        if number and not each:
            assert done == 3 * number
            assert all(map(torch.equal, [t.full_tensor() for t in tensors], before))
        torch.manual_seed(done)
        model(torch.randn(4, 16)).square().mean().backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).device_mesh is mesh
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    tensors = [*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values())]
    before = [tensor.full_tensor() for tensor in tensors]
    dist.barrier()
    generation.broke()
    del model, optimizer, tensors
    dist.destroy_process_group()
    gc.collect()
print("equal", flush=True)
"""


@pytest.mark.slow
@pytest.mark.needs_torch
def test_processes_exchange_model_shards_when_their_ranks_change(warm_torch: WarmTorch) -> None:
    """Each process has a different rank in the next generation. The mesh is equal."""
    result = warm_torch.run(MOVED, "--nproc-per-node=4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["equal"] * 4


WARM = """
import csv, os, pathlib, signal, sys, time
from relight.worker import recoverable

rank, here = int(os.environ["RANK"]), pathlib.Path.cwd()

@recoverable
def train(generation):
    (here / f"{rank}-{generation.restart}").write_text(str(os.getpid()))
    if generation.restart == 0:
        while not (here / "go").exists():
            time.sleep(0.01)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    generation.restored()

train()
"""


def test_replacement_rank_is_forked_from_warm_process(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """The survivors had started cold, so the ranks of one generation have two spawners."""
    logs = tmp_path / "logs"
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--preload=auto", f"--log-dir={logs}")
    agent = start("run", *flags, script(WARM), command=SOON)
    wait_for_event(agent, logs, "PreloadReady")
    (tmp_path / "go").touch()
    assert agent.wait(LIMIT_S) == 0
    events = next(logs.glob("*/events.jsonl")).read_text().splitlines()
    warm = [each for line in events if (each := json.loads(line))["event"] == "WorkersForked"]
    assert [each["warm"] for each in warm] == [False, True]
    pids = {name: (tmp_path / name).read_text() for name in ("0-0", "0-1", "1-0", "1-1")}
    assert pids["0-0"] == pids["0-1"]
    assert pids["1-0"] != pids["1-1"]


def test_all_ranks_restart_if_health_check_is_enabled(launch: Launch, script: Script) -> None:
    text = BEGIN + FAIL.replace("FAILING", "[2]").replace("HOW", KILL)
    flags = ("--nproc-per-node=4", "--max-restarts=1", "--health-check=memory")
    result = launch("run", *flags, script(text))
    assert result.returncode == 0, result.stderr
    assert "all ranks restart: --health-check checks the node without workers" in result.stderr
    assert "was replaced" not in result.stderr


@pytest.mark.parametrize("seeds", [range(3), long(range(3, 208))], ids=["few", "many"])
def test_training_job_survives_random_failures(seeds: range, tmp_path: Path) -> None:
    stayed = 0
    for seed in seeds:
        place = tmp_path / str(seed)
        place.mkdir()
        assert not survivor_plays.play(seed, place), seed
        stayed += survivor_plays.recoveries(place)
    assert stayed
