"""The examples do what their docstrings promise, on real workers."""

import ast
import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import LIMIT_S, TORCHRUN, Launch, Start
from warm_torch import WarmTorch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DIGITS, HELLO, DEMO = (EXAMPLES / f"{name}.py" for name in ("digits", "hello_ddp", "demo"))
EPOCHS = 30
STOP_AFTER = 5
# torchrun's own store keeps keys that workers set before a restart. This variable leaves the store
# to rank 0.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# The digits example; in each attempt, a rank exits in the middle of epoch STOP_AFTER + 1.
INTERRUPTED = f"""
import os, signal, sys, time
sys.path.insert(0, {str(EXAMPLES)!r})
import digits

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
is_chosen = os.environ["RANK"] == str(attempt)
train_epoch, epochs = digits.train_epoch, 0

def interrupted(batches):
    for number, batch in enumerate(batches):
        if number == 3:
            if "WAITS" in os.environ:
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

def train_interrupted(model, optimizer, batches):
    global epochs
    epochs += 1
    is_last = epochs == {STOP_AFTER + 1} and is_chosen
    return train_epoch(model, optimizer, interrupted(batches) if is_last else batches)

digits.train_epoch = train_interrupted
digits.main()
"""

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """The results of `uninterrupted`."""
    return {}


@pytest.fixture
def uninterrupted(
    kept: dict[str, tuple[str, Path]],
    warm_torch: WarmTorch,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    """The output and the last checkpoint of an undisturbed training run with 2 workers."""
    if not kept:
        checkpoint = tmp_path_factory.mktemp("uninterrupted") / "digits.pt"
        arguments = (f"--checkpoint={checkpoint}",)
        done = warm_torch.run(DIGITS.read_text(), "--nproc-per-node=2", arguments=arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        kept["two"] = done.stdout, checkpoint
    return kept["two"]


def load(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=True)


def identical(one: Any, other: Any) -> bool:
    """Return whether two checkpoints contain the same values, bit for bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    return type(one) is type(other) and one == other


def read_until(process: "subprocess.Popen[bytes]", pattern: str, text: str = "") -> str:
    """Return what `process` prints up to the first match of `pattern`, after `text`."""
    assert process.stdout is not None
    deadline = time.monotonic() + LIMIT_S
    while not re.search(pattern, text):
        wait_s = max(0.0, deadline - time.monotonic())
        assert select.select([process.stdout], [], [], wait_s)[0], f"no {pattern} in {text!r}"
        data = os.read(process.stdout.fileno(), 65536)
        assert data, f"it ended without {pattern}: {text!r}"
        text += data.decode()
    return text


def processes_with(variable: str) -> list[int]:
    """Return the pids of processes with this variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and variable.encode() in (
                (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
        except OSError:
            pass  # it has exited, or belongs to another user
    return found


def import_example(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", [DIGITS, HELLO], ids=lambda path: path.stem)
def test_training_examples_do_not_import_relight(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert "torch" in imported
    assert not {name for name in imported if name.startswith("relight")}


def test_digits_example_reaches_95_percent_accuracy(uninterrupted: tuple[str, Path]) -> None:
    """The example prints one line per epoch."""
    lines = uninterrupted[0].splitlines()
    assert lines[0] == "2 workers on cpu with gloo, starting"
    epochs = [re.match(r"epoch +(\d+) of 30: loss [\d.]+, test accuracy [\d.]+$", x) for x in lines]
    assert [int(match[1]) for match in epochs if match] == list(range(1, EPOCHS + 1))
    assert lines[-1].startswith("test accuracy: ")
    assert float(lines[-1].split()[-1]) >= 0.95
    assert len(lines) == EPOCHS + 2


def test_digits_example_gives_same_result_if_worker_is_killed(
    warm_torch: WarmTorch, uninterrupted: tuple[str, Path]
) -> None:
    """The result is identical bit for bit, whether rank 0 (which saves) or another is killed."""
    done = warm_torch.run(INTERRUPTED, "--nproc-per-node=2", "--max-restarts=2")
    assert done.returncode == 0, done.stderr
    starts = re.findall(r"with gloo, (.*)", done.stdout)
    resumed = [f"resuming after epoch {epoch} of 30" for epoch in (STOP_AFTER, 2 * STOP_AFTER)]
    assert starts == ["starting", *resumed]
    for rank in (0, 1):
        assert f"rank {rank} was killed by SIGKILL" in done.stderr
    assert uninterrupted[0].splitlines()[-1] in done.stdout.splitlines()
    assert identical(load(warm_torch.folder / "digits.pt"), load(uninterrupted[1]))


@pytest.mark.long
def test_digits_example_gives_same_result_after_stop_and_resume(
    warm_torch: WarmTorch, uninterrupted: tuple[str, Path]
) -> None:
    process = warm_torch.begin(INTERRUPTED, "--nproc-per-node=2", variables={"WAITS": "1"})
    read_until(process, rf"epoch +{STOP_AFTER} of ")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert load(warm_torch.folder / "digits.pt")["epochs"] == STOP_AFTER
    again = warm_torch.run(DIGITS.read_text(), "--nproc-per-node=2")
    assert again.returncode == 0, again.stderr
    assert f"resuming after epoch {STOP_AFTER} of" in again.stdout.splitlines()[0]
    assert identical(load(warm_torch.folder / "digits.pt"), load(uninterrupted[1]))


def test_digits_example_resumes_with_different_world_size(
    warm_torch: WarmTorch, uninterrupted: tuple[str, Path]
) -> None:
    """The number of images isn't divisible by the number of workers."""
    (warm_torch.folder / "digits.pt").write_bytes(uninterrupted[1].read_bytes())
    text = f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport digits\n"
    text += "digits.IMAGES, digits.TEST_IMAGES = 1802, 361\ndigits.main()\n"
    done = warm_torch.run(text, "--nproc-per-node=3", arguments=("--epochs=31",))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "3 workers on cpu with gloo, resuming after epoch 30 of 31"
    assert [line[:8] for line in lines[1:-1]] == ["epoch 31"]
    assert float(lines[-1].split()[-1]) >= 0.95


@pytest.mark.long
def test_digits_example_gives_same_result_as_under_torchrun(
    launch: Launch, tmp_path: Path, uninterrupted: tuple[str, Path]
) -> None:
    """The result is identical bit for bit, and the script is unmodified."""
    done = launch("--nproc-per-node=2", DIGITS, command=TORCHRUN, **OWN_STORE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == uninterrupted[0]
    assert identical(load(tmp_path / "digits.pt"), load(uninterrupted[1]))


SAVE_AND_DIE = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from digits import load_checkpoint, save_checkpoint

torch.set_num_threads(1)  # a thread pool does not survive a fork

path = Path(sys.argv[2])
numbers = random.Random(0)

def save(value):
    save_checkpoint(path, {"value": value, "weights": torch.full((50_000,), value)})

begin = time.monotonic()
save(0)
one_save_s = time.monotonic() - begin
seen = 0
for _ in range(20):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        for value in range(seen + 1, 10**9):
            save(value)
            os.write(writes, b"x")
    os.read(reads, 1)  # it has saved once
    time.sleep(numbers.uniform(0, 2 * one_save_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reads)
    os.close(writes)
    checkpoint = load_checkpoint(path)
    assert checkpoint["value"] > seen, "it went backwards"
    assert (checkpoint["weights"] == checkpoint["value"]).all(), "it is mixed from two"
    seen = checkpoint["value"]
print(seen, *sorted(os.listdir(path.parent)))
"""


def test_digits_example_writes_checkpoints_atomically(launch: Launch, tmp_path: Path) -> None:
    """If killed while saving, it leaves at most one temporary file next to the checkpoint."""
    path = tmp_path / "made" / "digits.pt"
    done = launch("-c", SAVE_AND_DIE, EXAMPLES, path, command=(sys.executable,))
    assert done.returncode == 0, done.stderr
    _, *files = done.stdout.split()
    assert set(files) <= {"digits.pt", "digits.pt.partial"}


def test_hello_ddp_example_prints_three_lines_per_rank(warm_torch: WarmTorch) -> None:
    done = warm_torch.run(HELLO.read_text(), "--nnodes=1", "--nproc-per-node=2")
    assert done.returncode == 0, done.stderr
    check_hello(done.stdout, 2)


@pytest.mark.long
def test_hello_ddp_example_prints_same_lines_as_under_torchrun(
    launch: Launch, tmp_path: Path
) -> None:
    """Files are compared, because torchrun's workers interleave lines on a shared stdout."""
    done = launch("--redirects=1", f"--log-dir={tmp_path}", "--nnodes=1", "--nproc-per-node=3",
                  HELLO, command=TORCHRUN, **OWN_STORE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_hello("".join(path.read_text() for path in tmp_path.rglob("stdout.log")), 3)


def check_hello(output: str, nproc: int) -> None:
    forms = (
        r"\[(\d+)\] Initializing process group with: \{'MASTER_ADDR': '[^']+', "
        rf"'MASTER_PORT': '\d+', 'RANK': '(\d)', 'WORLD_SIZE': '{nproc}'\}}",
        rf"\[(\d+)\] world_size = {nproc}, rank = (\d), backend=gloo",
        rf"\[(\d+)\] rank = (\d), world_size = {nproc}",
    )
    lines = output.splitlines()
    found = [sorted(m.groups() for x in lines if (m := re.fullmatch(f, x))) for f in forms]
    assert sorted(rank for _, rank in found[0]) == [str(rank) for rank in range(nproc)]
    assert found[0] == found[1] == found[2]  # a process has the same rank in all three lines
    assert len(lines) == 3 * nproc


@pytest.mark.parametrize("path", [DIGITS, HELLO], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("devices", "built_for", "expected"),
    [
        (8, "cuda", "cuda:3"),
        (4, "xpu", "xpu:3"),
        (1, "cuda", "cpu"),  # workers in one group can't share a GPU
        (0, "cuda", "cpu"),  # a CUDA build of torch without a GPU
        (0, None, "cpu"),
    ],
)
def test_examples_use_accelerators_only_if_each_worker_has_one(
    path: Path,
    devices: int,
    built_for: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    accelerator = None if built_for is None else torch.device(built_for)

    def current_accelerator(check_available: bool = False) -> object:
        return None if check_available and not devices else accelerator

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    # The last worker on the third node, with 4 workers each.
    for name, value in {"RANK": 11, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    assert str(import_example(path).choose_device()) == expected


def story(lines: str) -> Any:
    """Return how the demo interprets a job's output, without killing a worker."""
    demo = import_example(DEMO)
    found = demo.Story(lambda: 4711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        for line in lines.splitlines():
            found.read(line)
    return found


def epochs(first: int, last: int) -> str:
    return "".join(f"epoch {n:>2} of 30: loss 1.0\n" for n in range(first, last + 1))


RESUMED = "4 workers on cpu with gloo, resuming after epoch 12 of 30\n"


@pytest.mark.parametrize(
    ("lines", "flaw"),
    [
        (epochs(1, 11), "no worker was killed: the training did not get to epoch 12"),
        (epochs(1, 30), "the training did not resume from the checkpoint"),
        (
            epochs(1, 12) + RESUMED.replace("12", "11") + epochs(12, 30),
            "epoch 12 was saved, but it resumed at 11",
        ),
        (epochs(1, 12) + RESUMED + epochs(13, 29), "the training ended with epoch 29 of 30"),
        (
            epochs(1, 12) + RESUMED + epochs(13, 30) + "test accuracy: 0.9400",
            "the accuracy is 0.94, below 0.95",
        ),
        (epochs(1, 12) + RESUMED + epochs(13, 30) + "test accuracy: 0.9500", ""),
    ],
    ids=["no kill", "no resume", "too early", "no end", "low accuracy", "all steps succeed"],
)
def test_failed_demo_names_the_step_that_failed(lines: str, flaw: str) -> None:
    assert story(lines).flaw() == flaw


@pytest.mark.long
def test_demo_shows_kill_restart_and_warm_start(start: Start, tmp_path: Path) -> None:
    """The demo also shows the resume, and leaves nothing behind."""
    process = start(
        DEMO,
        command=(sys.executable,),
        variables={"TMPDIR": str(tmp_path), "STARTED_BY": str(tmp_path)},
        cwd=Path("/"),
        stderr=subprocess.STDOUT,
    )
    output = process.communicate(timeout=LIMIT_S)[0].decode()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    *_, killed_line, resumed_line, accuracy_line, empty, heads, start_row, again_row, kill_row = (
        output.splitlines()
    )
    killed = re.fullmatch(r"demo: killed +rank 2 \(pid (\d+)\), after epoch (\d+) .*", killed_line)
    assert killed, output
    report = rf"^relight: rank 2 was killed by SIGKILL.*\(pid {killed[1]} .*restart 1 of 3$"
    assert re.search(report, output, re.MULTILINE), output
    resumed = re.search(r"resumed +after epoch (\d+) of 30", resumed_line)
    assert resumed and int(killed[2]) <= int(resumed[1]) < EPOCHS, output
    assert re.search(r"accuracy +0\.9[5-9]", accuracy_line), output
    assert "not a warm one" not in output
    assert (empty, heads.split()) == ("", ["demo:", "relight", "torchrun"])
    for row in (start_row, again_row, kill_row):
        assert re.fullmatch(r"demo: \w.*( +\d+\.\d\d s){2}", row), output
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + LIMIT_S
    while left := processes_with(f"STARTED_BY={tmp_path}"):  # exiting ones still count
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("demo: relight run", signal.SIGINT),
        ("demo: relight run", signal.SIGTERM),
        ("demo: relight run", signal.SIGHUP),
        pytest.param("relight: rank 2 was killed", signal.SIGTERM, marks=pytest.mark.long),
    ],
    ids=["INT at the start", "TERM at the start", "HUP at the start", "TERM later"],
)
def test_interrupted_demo_cleans_up(
    start: Start, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    """The demo removes its files and processes, even while relight is still starting."""
    process = start(
        DEMO,
        command=(sys.executable,),
        variables={"TMPDIR": str(tmp_path), "STARTED_BY": str(tmp_path)},
        stderr=subprocess.STDOUT,
    )
    read_until(process, moment)
    assert processes_with(f"STARTED_BY={tmp_path}")
    process.send_signal(number)
    output = process.communicate(timeout=LIMIT_S)[0].decode()
    assert process.returncode == 128 + number, output
    assert output.splitlines()[-1] == "demo: interrupted"
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + LIMIT_S
    while left := processes_with(f"STARTED_BY={tmp_path}"):  # exiting ones still count
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_documented_preemption_handler_saves_after_a_complete_step(warm_torch: WarmTorch) -> None:
    """docs/clusters/slurm.md: all ranks exit after the same step, whichever receives the signal."""
    page = (EXAMPLES.parent / "docs" / "clusters" / "slurm.md").read_text()
    loop = page.partition("```python\n")[2].partition("```")[0]
    assert "signal.SIGUSR1" in loop
    before = """
        import os, signal, sys, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model, first, steps = torch.nn.Linear(1, 1), 0, 1000_000
        def train(step):
            torch.nn.init.constant_(model.weight, step)
            if step == 3 and dist.get_rank() == 0:
                os.write(1, b"up\\n")
            time.sleep(0.01)
    """
    flags = ("--on-preempt=SIGUSR1", "--nproc-per-node=2")
    agent = warm_torch.begin(textwrap.dedent(before) + loop, *flags, quick_exit=False)
    assert agent.stdout is not None and agent.stdout.readline() == b"up\n"
    agent.send_signal(signal.SIGUSR1)
    _, err = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 85, err
    show = "import torch; c = torch.load('checkpoint.pt'); print(c['step'] - c['model']['weight'])"
    assert warm_torch.run(show).stdout == "tensor([[1.]])\n"
    assert not (warm_torch.folder / "checkpoint.tmp").exists()
